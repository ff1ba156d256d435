// SPDX-License-Identifier: Apache-2.0
// Rules to states. analysis.cc then finds what the automaton must know beforehand.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace nibble::grammar {

// The states of rule i are those from first[i] to before first[i + 1]; its start is start[i].
struct RuleStates {
  std::vector<int32_t> first, start;
};

// kCall and kJump states know their rule alone; the last rule is the text.
Program BuildStates(std::span<const GrammarBuilder::Rule> rules, const std::string& where,
                    RuleStates* states);

// Sets `other` of calls and jumps, `nests` and `levels`; refuses left recursion and grammars that
// no text satisfies.
void Analyze(std::span<const GrammarBuilder::Rule> rules, const std::string& where,
             const RuleStates& states, Program* program);

}  // namespace nibble::grammar
