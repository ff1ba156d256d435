// SPDX-License-Identifier: Apache-2.0
// A compiled grammar: states of a pushdown automaton over bytes that does not look ahead and may be
// in many states at once. What a text may still become is a set of (state, stack); automaton.h runs
// it. A state says what follows until the end of its rule or repetition, where the stack says on.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "grammar/char_ranges.h"

namespace nibble::grammar {

struct State {
  enum class Kind : uint8_t {
    kReturn,  // the end of a rule or of one repetition; of the text, on an empty stack
    kBytes,   // one byte of set `value`, then next
    kToken,   // the token `value`, then next
    kSplit,   // next or other
    kCall,    // other, the start of rule `value`, as its own level; then next
    kJump,    // other, the start of rule `value`, in place of what follows: right recursion
              // takes no stack
    kLoop,    // other (which ends in kReturn) as often as loop `value` says, then next
  };
  Kind kind;
  bool nests = false;  // a call that may come back to itself: counts against the levels of nesting
  int32_t value = 0, next = 0, other = 0;
};
inline constexpr int32_t kReturnState = 0;

struct Loop {
  int32_t min, max;
};

struct Program {
  std::vector<State> states;  // kReturnState first
  std::vector<Loop> loops;
  std::vector<ByteSet> sets;
  int32_t start = 0;

  // Bytes that no set tells apart are one class; class_sets are `sets` by class.
  std::array<uint8_t, 256> byte_class = {};
  int32_t classes = 0;
  std::vector<ByteSet> class_sets;
  // The fewest further levels of nesting in which a state reaches its kReturn; kNever if it cannot.
  // The automaton counts these towards its bound, so that every text can be completed.
  std::vector<uint8_t> levels;
};
inline constexpr uint8_t kNever = 255;

}  // namespace nibble::grammar
