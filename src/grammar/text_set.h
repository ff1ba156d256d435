// SPDX-License-Identifier: Apache-2.0
// Sets of texts that can be joined, cut and taken away from each other: deterministic automata over
// characters. And() gives the texts that two patterns, a pattern and a length, or a bound and a
// multiple allow at once. A set of more than GrammarLimits::kSetStates states is a kUsage Error.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace nibble::grammar {

class TextSet {
 public:
  // Characters first..last lead to state `to`.
  struct Arc {
    uint32_t first, last;
    int32_t to;
    bool operator==(const Arc&) const = default;
  };
  struct State {
    std::vector<Arc> arcs;  // sorted, without overlaps; other characters lead nowhere
    bool accepts = false;
  };

  // State 0 is the start.
  explicit TextSet(std::vector<State> states);

  static TextSet All();
  // All texts of `min` to `max` characters; max may be kUnbounded.
  static TextSet OfLengths(int64_t min, int64_t max);
  // The texts of an expression without rules and tokens.
  static TextSet Of(const Expr& expression);

  TextSet And(const TextSet& other) const;
  TextSet Without(const TextSet& other) const;
  bool Contains(std::string_view text) const;  // text: valid UTF-8
  bool empty() const;
  size_t size() const { return states_.size(); }  // in states

  // An expression for these texts, a rule of `builder` for each state. `character` writes one of a
  // set of characters.
  Expr Write(GrammarBuilder* builder,
             const std::function<Expr(const CharRanges&)>& character) const;

 private:
  TextSet Not() const;
  void DropDeadEnds();

  std::vector<State> states_;
};

}  // namespace nibble::grammar
