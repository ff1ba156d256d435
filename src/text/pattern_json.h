// SPDX-License-Identifier: Apache-2.0
// Fields that several components of a tokenizer.json share. Wrong values are an Error.
#pragma once

#include <string>

#include "base/utf8.h"
#include "text/regex.h"
#include "text/tokenizer_json.h"

namespace nibble {

// {"String": "..."} or {"Regex": "..."}, as Replace and Split carry.
inline Regex PatternFromJson(const JsonNode& node) {
  node.AllowKeys({"String", "Regex"});
  const auto literal = node.Find("String");
  if (literal.has_value() == node.Find("Regex").has_value()) {
    Fail("{} must hold either \"String\" or \"Regex\"", node.where());
  }
  return literal
             ? Regex(literal->As<std::string_view>(), Regex::Syntax::kLiteral, node.where())
             : Regex(node.Get<std::string_view>("Regex"), Regex::Syntax::kPattern, node.where());
}

// Metaspace and Strip name one character.
inline std::string CharacterFromJson(const JsonNode& node) {
  const auto text = node.As<std::string_view>();
  if (text.empty() || text.size() != Utf8Length(text[0])) {
    Fail("{} must be one character", node.where());
  }
  return std::string(text);
}

// Metaspace, in the pre-tokenizer and in the decoder. Older files say add_prefix_space for
// "always" / "never".
enum class PrependScheme { kAlways, kFirst, kNever };

inline PrependScheme PrependSchemeFromJson(const JsonNode& node) {
  const auto scheme = node.Find("prepend_scheme");
  const bool add = node.GetOr("add_prefix_space", true);
  if (!scheme) return add ? PrependScheme::kAlways : PrependScheme::kNever;
  const auto name = scheme->As<std::string_view>();
  if (!add && name != "never") {
    Fail("{}: add_prefix_space contradicts prepend_scheme", node.where());
  }
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  scheme->Unsupported(name);
}

}  // namespace nibble
