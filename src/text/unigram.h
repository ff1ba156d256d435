// SPDX-License-Identifier: Apache-2.0
// Unigram language model (Kudo 2018) as in the "model" of a tokenizer.json of that type: of all
// ways to cut a piece into tokens, the one with the highest sum of scores (Viterbi over the tokens
// that start at each character). Time is O(n * longest token), charged to the Work. Immutable after
// loading.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/scored_vocabulary.h"
#include "text/token_trie.h"
#include "text/work.h"

namespace nibble {

class Unigram {
 public:
  // The best way to reach a place in the piece; `id` is the last token.
  struct Place {
    double score = 0;
    int64_t begin = -1;  // of the last token; -1: not reached
    int32_t id = -1;
  };
  // Memory that calls share.
  struct Scratch {
    std::vector<Place> places;
    std::vector<size_t> ends;
  };

  static Unigram FromJson(const JsonNode& model);

  // Appends the ids of one pre-tokenized piece of valid UTF-8.
  // A character that no token covers scores 10 less than the worst token; neighbours of that kind
  // are one unknown token, or their bytes with byte_fallback.
  void Encode(std::string_view piece, Work* work, Scratch* scratch,
              std::vector<int32_t>* ids) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  double TokenScore(int32_t id, size_t bytes) const;
  void FindBest(std::string_view piece, Work* work, std::vector<Place>* places) const;
  void PushUnknown(std::string_view text, std::vector<int32_t>* ids) const;

  Vocabulary vocabulary_;
  WholeTokens wholes_;
  TokenTrie trie_;
  std::vector<double> scores_;
  std::vector<ScoredVocabulary::Type> types_;  // of a SentencePiece model, which sums in fp32
  double unk_score_ = 0;
  float best_score_ = 0;  // of a normal piece, and not below 0, with types_
  int32_t unk_id_ = 0;
  std::optional<std::array<int32_t, 256>> byte_ids_;  // with byte_fallback
};

}  // namespace nibble
