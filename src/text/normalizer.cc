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

std::string Normalize(const std::string& text, int form) {
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
      normalizer.steps_.push_back([form = *form](std::string t) { return Normalize(t, form); });
    } else if (type == "Prepend") {
      step.AllowKeys({"type", "prepend"});
      normalizer.steps_.push_back(
          [prefix = std::string(step.Get<std::string_view>("prepend"))](std::string text) {
            return text.empty() ? text : prefix + text;
          });
    } else if (type == "Replace") {
      step.AllowKeys({"type", "pattern", "content"});
      normalizer.steps_.push_back(
          [pattern = PatternFromJson(step.Get("pattern")),
           content = std::string(step.Get<std::string_view>("content"))](std::string text) {
            return pattern.ReplaceAll(text, content);
          });
    } else {
      step.Unsupported(fmt::format("normalizer {}", type));
    }
  });
  return normalizer;
}

std::string Normalizer::Apply(std::string text) const {
  for (const Step& step : steps_) text = step(std::move(text));
  return text;
}

}  // namespace nibble
