// SPDX-License-Identifier: Apache-2.0
#include "source/unread_keys.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr size_t kMaxShown = 60;  // bytes of a value

// Calls use(word) until it returns true. Returns whether it did.
template <typename Use>
bool AnyWord(std::string_view words, const Use& use) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (end > 0 && use(words.substr(0, end))) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

bool Matches(std::string_view pattern, std::string_view key) {
  if (!pattern.ends_with('*')) return pattern == key;
  return key.starts_with(pattern.substr(0, pattern.size() - 1));
}

// The word for a value as in KeyRule::neutral, where 1.0 is "1"; empty for values that are no word.
std::string WordOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number()) return fmt::format("{:g}", value.get<double>());
  if (!value.is_array() || value.empty()) return {};
  const bool same = std::ranges::all_of(value, [&](const Json& v) { return v == value[0]; });
  return same && !value[0].is_structured() ? WordOf(value[0]) : "";
}

bool SaysNothing(const Json& value) {
  return value.is_null() || (value.is_structured() && value.empty());
}

}  // namespace

bool HasWord(std::string_view words, std::string_view word) {
  return AnyWord(words, [&](std::string_view w) { return w == word; });
}

void JudgeKey(std::string_view key, const Json& value, std::span<const KeyRule> rules,
              const std::string& document, UnreadKeys& found) {
  if (SaysNothing(value)) return;
  const auto rule = std::ranges::find_if(rules, [&](const KeyRule& r) {
    return AnyWord(r.keys, [&](std::string_view pattern) { return Matches(pattern, key); });
  });
  const std::string word = WordOf(value);
  std::vector<std::string>* list = &found.unknown;
  if (rule != rules.end()) {
    const bool nothing = !word.empty() && HasWord(rule->neutral, word);
    if (rule->effect == Effect::kNone || nothing) return;
    list = rule->effect == Effect::kRefused ? &found.refused : &found.answers;
  }
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  list->push_back(Printable(text.size() > kMaxShown
                                ? fmt::format("{}{}", document, key)
                                : fmt::format("{}{} = {}", document, key, text)));
}

}  // namespace nibble
