// SPDX-License-Identifier: Apache-2.0
// Regular expressions as JSON Schema has them (ECMAScript), of what a finite automaton can do:
// characters, escapes and classes (pattern_reader.h), ., ( ), (?: ), |, ? * + {m} {m,} {m,n}, lazy
// ones too (which texts match is the same), ^ in front and $ at the end of the whole or of one of
// its alternatives. Everything else is refused by name. Nothing backtracks.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "grammar/expression.h"

namespace nibble::grammar {

// `character` writes one of a set of characters: as UTF-8, or as in a JSON string.
// `search`: the pattern may match anywhere in the text where ^ and $ do not say otherwise.
Expr ParseRegex(std::string_view pattern, const std::string& where, bool search,
                const std::function<Expr(const CharRanges&)>& character);

}  // namespace nibble::grammar
