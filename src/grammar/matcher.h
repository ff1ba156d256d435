// SPDX-License-Identifier: Apache-2.0
// One text being written within a grammar: which tokens may come next. What Accept took is always
// the beginning of a text that the grammar allows. Not thread-safe; the grammar and the vocabulary
// may be shared.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/token_bytes.h"

namespace nibble {

class Matcher {
 public:
  // `vocabulary` must outlive this. A token of stop_ids is never text: it ends it.
  Matcher(std::shared_ptr<const Grammar> grammar, const VocabularyTrie& vocabulary,
          std::vector<int32_t> stop_ids);
  Matcher(Matcher&&) = default;

  // Bit i: token i may come next, [ceil(vocab_size / 64)]. Stop ids where the text may end, and
  // where nothing else may follow (a vocabulary without a token for every byte may lead there).
  // Valid until the next call. Both throw where the grammar turns out to be too ambiguous.
  std::span<const uint64_t> Mask();
  bool Accept(int32_t id);  // false: not allowed, nothing has changed

  bool may_end() const { return ended_ || automaton_.MayEnd(state_); }
  bool ended() const { return ended_; }

 private:
  using TextState = grammar::Automaton::TextState;
  struct CachedMask {
    TextState state;
    std::vector<uint64_t> bits;
  };

  void Begin();
  const std::vector<uint64_t>& CachedBits(TextState state);
  std::vector<uint64_t> ComputeBits(TextState state);
  void FindRun(TextState state);
  bool IsStop(int32_t id) const;

  grammar::Automaton automaton_;
  const VocabularyTrie& vocabulary_;
  std::vector<int32_t> stop_ids_;
  TextState state_;
  bool ended_ = false;
  std::list<CachedMask> masks_;  // those used last in front
  std::unordered_map<TextState, std::list<CachedMask>::iterator> mask_of_;
  std::vector<TextState> path_;  // of a walk, by depth
  std::vector<uint64_t> stop_bits_;

  // Inside of a string most bytes lead the same way. The text states after 0, 1, ... letters, and
  // the groups of bytes that led there as letters did: any text of these alone is allowed, which
  // spares a walk through most of a vocabulary.
  struct RunStep {
    TextState state;
    uint64_t groups;
  };
  static constexpr size_t kLongestRun = 32;
  std::vector<RunStep> run_;
};

}  // namespace nibble
