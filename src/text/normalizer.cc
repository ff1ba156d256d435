// SPDX-License-Identifier: Apache-2.0
#include "text/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "text/pattern_json.h"

namespace nibble {
namespace {

std::optional<int> UnicodeForm(std::string_view type) {
  if (type == "NFC") return UTF8PROC_COMPOSE;
  if (type == "NFD") return UTF8PROC_DECOMPOSE;
  if (type == "NFKC") return UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
  if (type == "NFKD") return UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  return std::nullopt;
}

// utf8proc decomposes into 4 bytes a character, at most 18 for one, and sorts a run of combining
// marks by insertion.
void ChargeNormalization(std::string_view text, Work* work) {
  work->ChargeWrite(3 * text.size());
  uint64_t run = 0;
  for (size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, Utf8Length(text[at]));
    at += character.size();
    utf8proc_int32_t c = 0;
    if (character.size() > 1) {
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()),
                       static_cast<utf8proc_ssize_t>(character.size()), &c);
    }
    run = c != 0 && utf8proc_get_property(c)->combining_class != 0 ? run + 1 : 0;
    work->Charge(run);
  }
}

std::string Normalize(const std::string& text, int form, Work* work) {
  ChargeNormalization(text, work);
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | form));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(result, std::free);
  if (size < 0) FailUsage("the text cannot be normalized: {}", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(result), static_cast<size_t>(size)};
}

}  // namespace

Normalizer Normalizer::FromJson(const std::optional<JsonNode>& node) {
  Normalizer normalizer;
  if (!node) return normalizer;
  node->ForEachComponent("normalizers", [&](const JsonNode& step, std::string_view type) {
    if (const auto form = UnicodeForm(type)) {
      step.AllowKeys({"type"});
      normalizer.steps_.push_back(
          [form = *form](std::string t, Work* work) { return Normalize(t, form, work); });
    } else if (type == "Prepend") {
      step.AllowKeys({"type", "prepend"});
      normalizer.steps_.push_back([prefix = std::string(step.Get<std::string_view>("prepend"))](
                                      std::string text, Work* work) {
        if (text.empty()) return text;
        work->ChargeWrite(prefix.size());
        return prefix + text;
      });
    } else if (type == "Replace") {
      step.AllowKeys({"type", "pattern", "content"});
      normalizer.steps_.push_back(
          [pattern = PatternFromJson(step.Get("pattern")),
           content = std::string(step.Get<std::string_view>("content"))](
              std::string text, Work* work) { return pattern.ReplaceAll(text, content, work); });
    } else {
      step.Unsupported(fmt::format("normalizer {}", type));
    }
  });
  return normalizer;
}

std::string Normalizer::Apply(std::string text, Work* work) const {
  for (const Step& step : steps_) text = step(std::move(text), work);
  return text;
}

}  // namespace nibble
