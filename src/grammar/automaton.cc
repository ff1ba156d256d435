// SPDX-License-Identifier: Apache-2.0
#include "grammar/automaton.h"

#include <algorithm>

namespace nibble::grammar {
namespace {

// The mixing function of splitmix64.
uint64_t MixBits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

uint64_t Pair(int32_t high, int32_t low) {
  return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
}

}  // namespace

bool ReadingSet::Insert(uint64_t key) {
  if (2 * size_ >= slots_.size()) {
    std::vector<Slot> old(2 * slots_.size());
    std::swap(old, slots_);
    size_ = 0;
    for (const Slot& slot : old) {
      if (slot.epoch == epoch_) Insert(slot.key);
    }
  }
  const size_t mask = slots_.size() - 1;
  for (size_t at = MixBits(key) & mask;; at = (at + 1) & mask) {
    Slot& slot = slots_[at];
    if (slot.epoch != epoch_) {
      slot = {key, epoch_};
      ++size_;
      return true;
    }
    if (slot.key == key) return false;
  }
}

size_t Automaton::FrameHash::operator()(const Frame& frame) const {
  return MixBits(MixBits(Pair(frame.state, frame.count)) + static_cast<uint32_t>(frame.below));
}

Automaton::Automaton(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), program_(grammar_->program()) {}

Automaton::TextState Automaton::start() {
  seen_.Clear();
  Reach({program_.start, kEmpty});
  return Finish();
}

bool Automaton::Accepts(std::string_view text) {
  TextState state = start();
  for (const char byte : text) {
    Begin(&state);
    state = Step(state, static_cast<uint8_t>(byte));
    if (state == kDead) return false;
  }
  return MayEnd(state);
}

void Automaton::Charge(size_t steps) {
  charged_ += steps;
  if (charged_ > GrammarLimits::kStepsPerCall) {
    FailUsage("the grammar is too ambiguous: over {} steps for one token",
              GrammarLimits::kStepsPerCall);
  }
}

int32_t Automaton::Push(const Frame& frame, bool nests) {
  const auto [it, is_new] = frame_ids_.emplace(frame, static_cast<int32_t>(frames_.size()));
  if (is_new) {
    const bool counts = frame.count != kCalled ||
                        (frame.below != kEmpty && infos_[static_cast<size_t>(frame.below)].counts);
    infos_.push_back({static_cast<uint8_t>(Levels(frame.below) + (nests ? 1 : 0)), counts});
    frames_.push_back(frame);
  }
  return it->second;
}

// Adds a reading if its text can be completed.
void Automaton::Reach(Reading reading) {
  const int levels = program_.levels[static_cast<size_t>(reading.state)];
  if (levels == kNever || levels + Levels(reading.stack) > GrammarLimits::kNesting) return;
  if (seen_.Insert(Pair(reading.state, reading.stack))) open_.push_back(reading);
}

void Automaton::GoOn(int32_t loop, int32_t count, int32_t below) {
  const State& state = At(loop);
  const auto [min, max] = program_.loops[static_cast<size_t>(state.value)];
  if (count < max) Reach({state.other, Push({loop, count, below}, false)});
  if (count >= min) Reach({state.next, below});
}

void Automaton::Follow(Reading reading) {
  const State& state = At(reading.state);
  switch (state.kind) {
    case State::Kind::kBytes:
    case State::Kind::kToken:
      found_.push_back(reading);
      break;
    case State::Kind::kSplit:
      Reach({state.next, reading.stack});
      Reach({state.other, reading.stack});
      break;
    case State::Kind::kJump:
      Reach({state.other, reading.stack});
      break;
    case State::Kind::kCall:
      Reach({state.other, Push({state.next, kCalled, reading.stack}, state.nests)});
      break;
    case State::Kind::kLoop:
      GoOn(reading.state, 0, reading.stack);
      break;
    case State::Kind::kReturn:
      if (reading.stack == kEmpty) {
        may_end_ = true;
        break;
      }
      const Frame frame = frames_[static_cast<size_t>(reading.stack)];
      if (frame.count == kCalled) {
        Reach({frame.state, frame.below});
      } else {
        GoOn(frame.state, frame.count + 1, frame.below);
      }
      break;
  }
}

Automaton::TextState Automaton::Finish() {
  found_.clear();
  may_end_ = false;
  while (!open_.empty()) {
    const Reading reading = open_.back();
    open_.pop_back();
    Charge(1);
    Follow(reading);
    if (found_.size() > GrammarLimits::kStacks) {
      FailUsage("the grammar is too ambiguous: over {} ways to read the text",
                GrammarLimits::kStacks);
    }
  }
  return Intern(found_, may_end_);
}

Automaton::TextState Automaton::Intern(std::vector<Reading> readings, bool may_end) {
  if (readings.empty() && !may_end) return kDead;
  std::sort(readings.begin(), readings.end());
  readings.erase(std::unique(readings.begin(), readings.end()), readings.end());
  uint64_t hash = may_end;
  for (const Reading& reading : readings) {
    hash = MixBits(hash + Pair(reading.state, reading.stack) + 0x9E3779B97F4A7C15ull);
  }
  const auto [first, last] = text_ids_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const std::span<const Reading> known = Readings(it->second);
    if (MayEnd(it->second) == may_end && std::ranges::equal(known, readings)) return it->second;
  }
  if (texts_.size() >= GrammarLimits::kTextStates) {
    FailUsage("the grammar is too ambiguous: over {} states for one token",
              GrammarLimits::kTextStates);
  }
  const auto state = static_cast<TextState>(texts_.size());
  texts_.push_back({.first = static_cast<uint32_t>(readings_.size()),
                    .count = static_cast<uint32_t>(readings.size()),
                    .may_end = may_end});
  readings_.insert(readings_.end(), readings.begin(), readings.end());
  text_ids_.emplace(hash, state);
  return state;
}

Automaton::TextState Automaton::Step(TextState from, uint8_t byte) {
  const uint8_t byte_class = program_.byte_class[byte];
  const auto f = static_cast<size_t>(from);
  if (texts_[f].steps < 0) {
    texts_[f].steps = static_cast<int32_t>(steps_.size());
    steps_.resize(steps_.size() + static_cast<size_t>(program_.classes), kUnknown);
  }
  const size_t slot = static_cast<size_t>(texts_[f].steps) + byte_class;
  if (steps_[slot] != kUnknown) return steps_[slot];
  open_.clear();
  seen_.Clear();
  for (const Reading& reading : Readings(from)) {
    const State& state = At(reading.state);
    if (state.kind != State::Kind::kBytes) continue;
    if (program_.class_sets[static_cast<size_t>(state.value)][byte_class]) {
      Reach({state.next, reading.stack});
    }
  }
  Charge(texts_[f].count);
  const TextState to = Finish();
  steps_[slot] = to;
  return to;
}

Automaton::TextState Automaton::StepToken(TextState from, int32_t token) {
  open_.clear();
  seen_.Clear();
  for (const Reading& reading : Readings(from)) {
    const State& state = At(reading.state);
    if (state.kind == State::Kind::kToken && state.value == token) {
      Reach({state.next, reading.stack});
    }
  }
  return Finish();
}

Automaton::TextState Automaton::Union(TextState a, TextState b) {
  if (a == kDead || b == kDead) return a == kDead ? b : a;
  const std::span<const Reading> first = Readings(a), second = Readings(b);
  std::vector<Reading> readings(first.begin(), first.end());
  readings.insert(readings.end(), second.begin(), second.end());
  return Intern(std::move(readings), MayEnd(a) || MayEnd(b));
}

std::vector<int32_t> Automaton::Tokens(TextState state) const {
  std::vector<int32_t> tokens;
  for (const Reading& reading : Readings(state)) {
    const State& s = At(reading.state);
    if (s.kind == State::Kind::kToken) tokens.push_back(s.value);
  }
  return tokens;
}

// The body of a loop takes a byte at least, so that `bytes` bytes are at most as many rounds.
int32_t Automaton::ShortCount(const Frame& frame, int32_t bytes) const {
  const auto [min, max] = program_.loops[static_cast<size_t>(At(frame.state).value)];
  if (frame.count >= min && frame.count < max - bytes) return max - bytes - 1;
  return frame.count < min - bytes ? min - bytes - 1 : frame.count;
}

Automaton::TextState Automaton::Shortened(TextState state, int32_t bytes) {
  const auto counts = [&](int32_t stack) {
    return stack != kEmpty && infos_[static_cast<size_t>(stack)].counts;
  };
  const std::span<const Reading> all = Readings(state);
  if (std::ranges::none_of(all, [&](const Reading& r) { return counts(r.stack); })) return state;
  std::vector<Reading> readings(all.begin(), all.end());
  std::vector<int32_t> chain;
  for (Reading& reading : readings) {
    chain.clear();
    int32_t stack = reading.stack;
    for (; counts(stack); stack = frames_[static_cast<size_t>(stack)].below) chain.push_back(stack);
    Charge(chain.size());
    for (size_t i = chain.size(); i-- > 0;) {
      Frame frame = frames_[static_cast<size_t>(chain[i])];
      const bool nests = Levels(chain[i]) > Levels(frame.below);
      if (frame.count != kCalled) frame.count = ShortCount(frame, bytes);
      frame.below = stack;
      stack = Push(frame, nests);
    }
    reading.stack = stack;
  }
  return Intern(std::move(readings), MayEnd(state));
}

bool Automaton::Begin(TextState* current) {
  charged_ = 0;
  const size_t held = readings_.size() + frames_.size();
  if (texts_.size() <= GrammarLimits::kTextStates / 2 && held <= GrammarLimits::kStepsPerCall) {
    return false;
  }
  *current = Moved(*current);
  return true;
}

// Forgets everything but one text state.
Automaton::TextState Automaton::Moved(TextState current) {
  const std::span<const Reading> all = Readings(current);
  std::vector<Reading> readings(all.begin(), all.end());
  const bool may_end = MayEnd(current);
  const std::vector<Frame> old = std::move(frames_);
  const std::vector<FrameInfo> old_infos = std::move(infos_);
  frames_.clear();
  infos_.clear();
  frame_ids_.clear();
  texts_.clear();
  readings_.clear();
  text_ids_.clear();
  steps_.clear();
  std::unordered_map<int32_t, int32_t> moved = {{kEmpty, kEmpty}};
  const auto level = [&](int32_t stack) {
    return stack == kEmpty ? 0 : old_infos[static_cast<size_t>(stack)].levels;
  };
  std::vector<int32_t> chain;
  for (Reading& reading : readings) {
    chain.clear();
    for (int32_t stack = reading.stack; !moved.contains(stack);) {
      chain.push_back(stack);
      stack = old[static_cast<size_t>(stack)].below;
    }
    for (size_t i = chain.size(); i-- > 0;) {
      Frame frame = old[static_cast<size_t>(chain[i])];
      const bool nests = level(chain[i]) > level(frame.below);
      frame.below = moved.at(frame.below);
      moved[chain[i]] = Push(frame, nests);
    }
    reading.stack = moved.at(reading.stack);
  }
  return Intern(std::move(readings), may_end);
}

}  // namespace nibble::grammar
