// SPDX-License-Identifier: Apache-2.0
// Expressions over bytes, in a tree, say what a text may be. GrammarBuilder::Compile (grammar.h)
// makes a grammar of it. Expressions are immutable and may be shared.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_ranges.h"

namespace nibble::grammar {

struct Expression;
using Expr = std::shared_ptr<const Expression>;

inline constexpr int64_t kUnbounded = -1;

struct Expression {
  enum class Kind { kLiteral, kBytes, kCharacters, kSequence, kChoice, kRepeat, kRule, kToken };
  Kind kind;
  std::string literal = "";
  ByteSet bytes = {};
  CharRanges characters = {};
  std::vector<Expr> parts = {};  // of a repetition, one
  int64_t min = 0, max = 0;      // of a repetition; max may be kUnbounded
  int32_t id = 0;                // of a rule or token
};

Expr Literal(std::string_view bytes);
Expr ByteClass(const ByteSet& bytes);  // one byte
Expr CharClass(CharRanges ranges);     // one character in UTF-8
Expr Sequence(std::vector<Expr> parts);
Expr Choice(std::vector<Expr> parts);              // of no parts: no text matches
Expr Repeat(Expr part, int64_t min, int64_t max);  // 0 <= min, max kUnbounded or >= min
Expr Optional(Expr part);
Expr Reference(int32_t rule);  // of the GrammarBuilder that compiles it
// The token itself and not its text: a marker such as <tool_call>.
Expr SpecialToken(int32_t id);

// The expression with each class of characters written as `character` says.
Expr MapCharacters(const Expr& expression, const std::function<Expr(const CharRanges&)>& character);

// One of ASCII's digits, from `first` to `last`.
Expr Digit(char first = '0', char last = '9');
// Any text in UTF-8, none included.
Expr AnyText();

}  // namespace nibble::grammar
