// SPDX-License-Identifier: Apache-2.0
// JSON as a grammar writes it. Spaces are bounded, so that a model cannot write them for ever:
// behind { [ and , and in front of } and ], nothing, one space, or a new line with up to 32 spaces
// and tabs; behind a colon, nothing or one space.
//
// Numbers have at most 18 digits in front of the point (an int64 takes them), 18 behind it and 2 in
// the exponent. Strings are UTF-8 without control characters, with all escapes; \uD83D\uDE00 stands
// in pairs only.
#pragma once

#include "grammar/grammar.h"

namespace nibble::grammar {

inline constexpr int kNumberDigits = 18;

Expr JsonSpace(GrammarBuilder* builder);
Expr JsonColon();
// One character between the quotes, or one of a set in its shortest writing.
Expr JsonCharacter(GrammarBuilder* builder);
Expr JsonCharacter(const CharRanges& set);
Expr JsonString(GrammarBuilder* builder);
Expr JsonInteger(GrammarBuilder* builder);
Expr JsonNumber(GrammarBuilder* builder);
// This value, spaced as above.
Expr JsonConstant(GrammarBuilder* builder, const Json& value);
std::string JsonDump(const Json& value);  // without spaces

// { } around members, or [ ] around elements, which may be none.
Expr JsonBrackets(GrammarBuilder* builder, char open, char close, Expr inside);
Expr JsonComma(GrammarBuilder* builder);
// From `min` to `max` parts with commas between; not 0 to 0.
Expr JsonList(GrammarBuilder* builder, const Expr& part, int64_t min, int64_t max);

}  // namespace nibble::grammar
