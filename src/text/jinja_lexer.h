// SPDX-License-Identifier: Apache-2.0
// Splits a template into tokens and settles all whitespace: trim_blocks and lstrip_blocks are on,
// as transformers sets them; "-" and "+" marks, comments, {% raw %}, line ends (\r\n and \r become
// \n) and the one dropped newline at the end follow jinja2 3.1. Raises TemplateError with the line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble::jinja {

inline constexpr size_t kMaxNameBytes = 256;

enum class TokenKind {
  kData,
  kBlockBegin,
  kBlockEnd,
  kOutputBegin,
  kOutputEnd,
  kName,
  kInteger,
  kFloat,
  kString,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // of a string: with its escapes resolved
};

std::vector<Token> Tokenize(std::string_view source);

}  // namespace nibble::jinja
