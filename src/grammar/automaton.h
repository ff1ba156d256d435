// SPDX-License-Identifier: Apache-2.0
// Runs a grammar over bytes. A reading is a state and a stack of where to go on; stacks share their
// lower parts. All readings of the text so far are followed side by side and make a text state.
// Text states are numbered and their steps kept, so that a repeated step is one look-up.
//
// Work is bounded by GrammarLimits; what needs more is an Error and leaves the automaton usable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"

namespace nibble::grammar {

// Numbers that were met since Clear(), which takes no time.
class ReadingSet {
 public:
  ReadingSet() : slots_(64) {}
  void Clear() {
    ++epoch_;
    size_ = 0;
  }
  bool Insert(uint64_t key);  // returns whether it is new

 private:
  struct Slot {
    uint64_t key = 0, epoch = 0;
  };
  std::vector<Slot> slots_;  // a power of two of them
  uint64_t epoch_ = 1;
  size_t size_ = 0;
};

class Automaton {
 public:
  using TextState = int32_t;
  static constexpr TextState kDead = -1;  // no text goes on from here

  explicit Automaton(std::shared_ptr<const Grammar> grammar);

  TextState start();
  // Starts the count of steps of a call anew. Text states other than `*current` may be forgotten:
  // returns true if they were; *current then has its new number.
  bool Begin(TextState* current);
  TextState Step(TextState from, uint8_t byte);
  // Returns whether the grammar has this whole text.
  bool Accepts(std::string_view text);
  TextState StepToken(TextState from, int32_t token);
  TextState Union(TextState a, TextState b);
  bool MayEnd(TextState state) const { return texts_[static_cast<size_t>(state)].may_end; }
  // Special tokens that may come next.
  std::vector<int32_t> Tokens(TextState state) const;
  // A text state that allows the same next `bytes` bytes, with counters that cannot reach their
  // ends within them set to one value: a long string of bounded length then has few different ones.
  TextState Shortened(TextState state, int32_t bytes);

 private:
  // The top of a stack; frames below are shared, equal ones exist once.
  struct Frame {
    int32_t state;  // where to go on, or a loop
    int32_t count;  // finished rounds of a loop; kCalled where it is none
    int32_t below;  // kEmpty: none
    bool operator==(const Frame&) const = default;
  };
  struct FrameInfo {
    uint8_t levels;  // of nesting
    bool counts;     // it or one below is a loop
  };
  static constexpr int32_t kEmpty = -1, kCalled = -1, kUnknown = -2;
  struct Reading {  // one way to read the text
    int32_t state, stack;
    auto operator<=>(const Reading&) const = default;
  };
  struct Text {
    uint32_t first, count;  // in readings_
    bool may_end;
    int32_t steps = -1;  // row of steps_
  };
  struct FrameHash {
    size_t operator()(const Frame& frame) const;
  };

  std::span<const Reading> Readings(TextState state) const {
    const Text& text = texts_[static_cast<size_t>(state)];
    return {readings_.data() + text.first, text.count};
  }
  const State& At(int32_t state) const { return program_.states[static_cast<size_t>(state)]; }
  void Charge(size_t steps);
  int32_t Push(const Frame& frame, bool nests);
  uint8_t Levels(int32_t stack) const {
    return stack == kEmpty ? 0 : infos_[static_cast<size_t>(stack)].levels;
  }
  void Reach(Reading reading);
  void Follow(Reading reading);
  void GoOn(int32_t loop, int32_t count, int32_t below);
  TextState Finish();
  TextState Intern(std::vector<Reading> readings, bool may_end);
  TextState Moved(TextState current);
  int32_t ShortCount(const Frame& frame, int32_t bytes) const;

  std::shared_ptr<const Grammar> grammar_;
  const Program& program_;
  std::vector<Frame> frames_;
  std::vector<FrameInfo> infos_;
  std::unordered_map<Frame, int32_t, FrameHash> frame_ids_;
  std::vector<Text> texts_;
  std::vector<Reading> readings_;
  std::unordered_multimap<uint64_t, TextState> text_ids_;  // by hash
  std::vector<int32_t> steps_;                             // [row][byte class], or kUnknown
  size_t charged_ = 0;

  // The step being taken: readings still to be followed and those found, and whether the text may
  // end.
  std::vector<Reading> open_, found_;
  ReadingSet seen_;
  bool may_end_ = false;
};

}  // namespace nibble::grammar
