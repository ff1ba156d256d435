// SPDX-License-Identifier: Apache-2.0
#include "text/normalizer.h"

#include <utf8proc.h>

#include <memory>
#include <utility>

#include "io/base64.h"
#include "text/normalizer_steps.h"
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

std::shared_ptr<const Charsmap> CharsmapFromJson(const JsonNode& node) {
  const auto bytes = DecodeBase64(node.As<std::string_view>());
  if (!bytes) Fail("{} is not base64", node.where());
  return std::make_shared<const Charsmap>(*bytes, node.where());
}

BertSteps BertFromJson(const JsonNode& node) {
  node.AllowKeys({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool lowercase = node.GetOr("lowercase", true);
  return {.clean_text = node.GetOr("clean_text", true),
          .chinese_chars = node.GetOr("handle_chinese_chars", true),
          .strip_accents = node.GetOr("strip_accents", lowercase),
          .lowercase = lowercase};
}

// The normalizer of a document that was made from a SentencePiece model.
std::shared_ptr<const SentencePieceSteps> SentencePieceFromJson(const JsonNode& node) {
  node.AllowKeys({"type", "precompiled_charsmap", "user_defined", "add_dummy_prefix",
                  "remove_extra_whitespaces", "escape_whitespaces"});
  auto steps = std::make_shared<SentencePieceSteps>();
  if (const auto map = node.Find("precompiled_charsmap")) steps->map = *CharsmapFromJson(*map);
  std::vector<TokenTrie::Token> user_defined;
  node.Get("user_defined").ForEach([&](const JsonNode& item) {
    user_defined.push_back({item.As<std::string_view>(), 0});
  });
  steps->user_defined = TokenTrie(std::move(user_defined), node.where());
  steps->add_dummy_prefix = node.Get<bool>("add_dummy_prefix");
  steps->remove_extra_whitespaces = node.Get<bool>("remove_extra_whitespaces");
  steps->escape_whitespaces = node.Get<bool>("escape_whitespaces");
  return steps;
}

using Step = std::function<std::string(std::string, Work*)>;

// The components that other families than byte-level BPE have.
Step StepOfWords(const JsonNode& node, std::string_view type) {
  if (type == "Lowercase") {
    node.AllowKeys({"type"});
    return [](std::string text, Work* work) { return Lowercase(text, work); };
  }
  if (type == "StripAccents") {
    node.AllowKeys({"type"});
    return [](std::string text, Work*) { return StripMarks(text); };
  }
  if (type == "Nmt") {
    node.AllowKeys({"type"});
    return [](std::string text, Work*) { return CleanForTranslation(text); };
  }
  if (type == "Strip") {
    node.AllowKeys({"type", "strip_left", "strip_right"});
    return [left = node.GetOr("strip_left", true), right = node.GetOr("strip_right", true)](
               std::string text, Work*) { return StripSpace(text, left, right); };
  }
  if (type == "BertNormalizer") {
    return [steps = BertFromJson(node)](std::string text, Work* work) {
      return NormalizeForBert(std::move(text), steps, work);
    };
  }
  if (type == "Precompiled") {
    node.AllowKeys({"type", "precompiled_charsmap"});
    return [map = CharsmapFromJson(node.Get("precompiled_charsmap"))](
               std::string text, Work* work) { return ReplaceGraphemes(*map, text, work); };
  }
  if (type == "SentencePiece") {
    return [steps = SentencePieceFromJson(node)](std::string text, Work* work) {
      return NormalizeForSentencePiece(*steps, text, work);
    };
  }
  node.Unsupported(fmt::format("normalizer {}", type));
}

Step StepFromJson(const JsonNode& node, std::string_view type) {
  if (const auto form = UnicodeForm(type)) {
    node.AllowKeys({"type"});
    return [form = *form](std::string text, Work* work) {
      return UnicodeNormalize(std::move(text), form, work);
    };
  }
  if (type == "Prepend") {
    node.AllowKeys({"type", "prepend"});
    return [prefix = std::string(node.Get<std::string_view>("prepend"))](std::string text,
                                                                         Work* work) {
      if (text.empty()) return text;
      work->ChargeWrite(prefix.size());
      return prefix + text;
    };
  }
  if (type == "Replace") {
    node.AllowKeys({"type", "pattern", "content"});
    return [pattern = PatternFromJson(node.Get("pattern")),
            content = std::string(node.Get<std::string_view>("content"))](
               std::string text, Work* work) { return pattern.ReplaceAll(text, content, work); };
  }
  return StepOfWords(node, type);
}

}  // namespace

Normalizer Normalizer::FromJson(const std::optional<JsonNode>& node) {
  Normalizer normalizer;
  if (!node) return normalizer;
  node->ForEachComponent("normalizers", [&](const JsonNode& step, std::string_view type) {
    normalizer.steps_.push_back(StepFromJson(step, type));
  });
  return normalizer;
}

std::string Normalizer::Apply(std::string text, Work* work) const {
  for (const Step& step : steps_) text = step(std::move(text), work);
  return text;
}

}  // namespace nibble
