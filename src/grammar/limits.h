// SPDX-License-Identifier: Apache-2.0
// The most that one grammar and one text may cost. Schemas, patterns and grammars come from
// requests: one that exceeds a limit is an Error of its request and takes no longer than the limit
// allows. The last four are near those of llguidance (2000 items a row, 200,000 steps, 250,000
// lexer states).
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble {

struct GrammarLimits {
  static constexpr size_t kSourceBytes = 256 << 10;  // of a pattern, a grammar or a schema
  static constexpr size_t kRules = 50'000;
  static constexpr size_t kStates = 200'000;         // of a compiled grammar, 20 bytes each
  static constexpr size_t kSetStates = 50'000;       // of a TextSet
  static constexpr size_t kSetSteps = 4'000'000;     // while one is made, and of its arcs
  static constexpr size_t kBuildSteps = 20'000'000;  // expressions visited while compiling
  static constexpr int kExpressionDepth = 512;       // of a tree of expressions, on the C++ stack
  static constexpr int kGroupDepth = 64;             // of ( ) in patterns and grammars
  static constexpr int64_t kRepeat = 1'000'000;      // the largest count in {m,n}, minLength, ...
  static constexpr size_t kProperties = 1000;        // of an object in a schema

  // Levels of recursion in a text. With the outermost array or object this gives the 64 levels
  // that ParseJson takes. The 65th is not an error: the mask does not offer what would open it.
  static constexpr int kNesting = 63;
  static constexpr size_t kStacks = 2000;  // ways to read one text that stay open at a time
  static constexpr size_t kStepsPerCall = 500'000;  // of the automaton, for a mask or a token
  static constexpr size_t kTextStates =
      16'384;                                 // sets of stacks that are kept, about 200 bytes each
  static constexpr size_t kCachedMasks = 64;  // of a text; a bit per token each
};

}  // namespace nibble
