// SPDX-License-Identifier: Apache-2.0
#include "grammar/matcher.h"

#include <algorithm>

namespace nibble {
namespace {

void SetBit(std::vector<uint64_t>* bits, int32_t id) {
  (*bits)[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

}  // namespace

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, const VocabularyTrie& vocabulary,
                 std::vector<int32_t> stop_ids)
    : automaton_(std::move(grammar)),
      vocabulary_(vocabulary),
      stop_ids_(std::move(stop_ids)),
      state_(automaton_.start()),
      path_(static_cast<size_t>(vocabulary.longest()) + 1),
      stop_bits_(static_cast<size_t>(vocabulary.vocab_size() + 63) / 64) {
  std::erase_if(stop_ids_, [&](int32_t id) { return id < 0 || id >= vocabulary.vocab_size(); });
  if (stop_ids_.empty()) Fail("the model has no token that ends a text; a grammar needs one");
  for (const int32_t id : stop_ids_) SetBit(&stop_bits_, id);
}

bool Matcher::IsStop(int32_t id) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
}

void Matcher::Begin() {
  if (!automaton_.Begin(&state_)) return;
  masks_.clear();
  mask_of_.clear();
}

std::span<const uint64_t> Matcher::Mask() {
  if (ended_) return stop_bits_;
  Begin();
  return CachedBits(automaton_.Shortened(state_, vocabulary_.longest()));
}

bool Matcher::Accept(int32_t id) {
  if (ended_) return false;
  Begin();
  if (IsStop(id)) {
    const std::span<const uint64_t> mask = Mask();
    const bool allowed = (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
    ended_ = allowed;
    return allowed;
  }
  // A token may be read as itself or as its text.
  const TextState by_token = automaton_.StepToken(state_, id);
  const std::string_view bytes = vocabulary_.Bytes(id);
  TextState by_bytes = bytes.empty() ? grammar::Automaton::kDead : state_;
  for (const char byte : bytes) {
    if (by_bytes == grammar::Automaton::kDead) break;
    by_bytes = automaton_.Step(by_bytes, static_cast<uint8_t>(byte));
  }
  const TextState both = automaton_.Union(by_token, by_bytes);
  if (both == grammar::Automaton::kDead) return false;
  state_ = both;
  return true;
}

const std::vector<uint64_t>& Matcher::CachedBits(TextState state) {
  const auto known = mask_of_.find(state);
  if (known != mask_of_.end()) {
    masks_.splice(masks_.begin(), masks_, known->second);
    return masks_.front().bits;
  }
  masks_.push_front({state, ComputeBits(state)});
  mask_of_[state] = masks_.begin();
  if (masks_.size() > GrammarLimits::kCachedMasks) {
    mask_of_.erase(masks_.back().state);
    masks_.pop_back();
  }
  return masks_.front().bits;
}

void Matcher::FindRun(TextState state) {
  run_.assign(1, {state, ~uint64_t{0}});
  while (run_.size() <= kLongestRun) {
    const RunStep last = run_.back();
    const TextState next = automaton_.Step(last.state, 'e');
    if (next == grammar::Automaton::kDead) return;
    if (run_.size() > 1 && next == last.state && run_[run_.size() - 2].state == next) {
      run_.resize(kLongestRun + 1, last);
      return;
    }
    grammar::ByteSet alike;
    for (size_t byte = 0; byte < 256; ++byte) {
      alike[byte] = automaton_.Step(last.state, static_cast<uint8_t>(byte)) == next;
    }
    run_.push_back({next, last.groups & VocabularyTrie::ByteGroups(alike)});
  }
}

std::vector<uint64_t> Matcher::ComputeBits(TextState state) {
  std::vector<uint64_t> bits(stop_bits_.size());
  FindRun(state);
  const auto& nodes = vocabulary_.nodes();
  const auto& tokens = vocabulary_.tokens();
  const auto allow = [&](int32_t first, int32_t last) {
    for (int32_t i = first; i < last; ++i) SetBit(&bits, tokens[static_cast<size_t>(i)]);
  };
  path_[0] = state;
  for (size_t i = 0; i + 1 < nodes.size();) {
    const VocabularyTrie::Node& node = nodes[i];
    const auto depth = static_cast<size_t>(node.depth);
    const TextState to = automaton_.Step(path_[depth], node.byte);
    if (to == grammar::Automaton::kDead) {
      i = static_cast<size_t>(node.end);
      continue;
    }
    const size_t end = depth + 1 + static_cast<size_t>(node.height);
    if (end < run_.size() && to == run_[depth + 1].state &&
        (node.groups & ~run_[end].groups) == 0) {
      allow(node.first_token, nodes[static_cast<size_t>(node.end)].first_token);
      i = static_cast<size_t>(node.end);
      continue;
    }
    allow(node.first_token, nodes[i + 1].first_token);  // those that end here
    path_[depth + 1] = to;
    ++i;
  }
  for (size_t word = 0; word < bits.size(); ++word) bits[word] &= ~stop_bits_[word];
  for (const int32_t id : automaton_.Tokens(state)) {
    if (id >= 0 && id < vocabulary_.vocab_size()) SetBit(&bits, id);
  }
  const bool stuck = std::ranges::all_of(bits, [](uint64_t word) { return word == 0; });
  if (stuck || automaton_.MayEnd(state)) {
    for (size_t word = 0; word < bits.size(); ++word) bits[word] |= stop_bits_[word];
  }
  return bits;
}

}  // namespace nibble
