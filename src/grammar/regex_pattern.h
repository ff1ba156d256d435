// SPDX-License-Identifier: Apache-2.0
// Regular expressions as JSON Schema has them (ECMAScript), as far as a finite automaton can do
// them: characters, escapes and classes (pattern_reader.h), groups, alternatives, repetitions (lazy
// ones match the same texts), ^ and $ at the ends of the whole or of one of its alternatives,
// look-ahead at their beginning. Everything else is refused by name. Nothing backtracks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/expression.h"
#include "grammar/text_set.h"

namespace nibble::grammar {

struct RegexPattern {
  struct Look {
    bool holds;  // (?= ), or (?! )
    Expr text;   // of a whole text
  };
  struct Alternative {
    std::vector<Look> looks;
    Expr text;
  };
  std::vector<Alternative> alternatives;

  bool looks_ahead() const;
  Expr Texts() const;  // without what looks ahead
};

// `search`: the pattern may match anywhere in the text where ^ and $ do not say otherwise.
RegexPattern ParseRegex(std::string_view pattern, const std::string& where, bool search);
// The texts that a pattern matches, with what looks ahead.
TextSet PatternSet(std::string_view pattern, const std::string& where, bool search);

}  // namespace nibble::grammar
