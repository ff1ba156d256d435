// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding (Sennrich et al. 2016) as in the "model" of a tokenizer.json of type BPE. A
// piece starts as its characters; the pair of neighbours with the lowest merge rank (leftmost among
// equals) is joined until no pair has a rank. Immutable after loading.
//
// SentencePiece-style models have no pre-tokenizer: a whole text is one piece. So neighbours that
// no merge joins cut a piece into runs first, about as long as words. Short runs are searched for
// the lowest rank, long ones have a heap over a linked list: no input is worse than O(n log n).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/pair_table.h"
#include "text/scored_vocabulary.h"
#include "text/token_trie.h"
#include "text/tokenizer_json.h"
#include "text/vocabulary.h"

namespace nibble {

class Bpe {
 public:
  // A symbol of a run, and the merge with its right neighbour, if there is one.
  struct Symbol {
    int32_t id;
    PairTable::Merge merge;
  };
  struct Link {
    int32_t prev, next;  // -1: none
  };
  // Candidates are not removed when a neighbour changes; their ids then no longer fit.
  struct Candidate {
    uint32_t rank;
    int32_t left;  // index of the left symbol
    int32_t left_id, right_id;
    bool operator<(const Candidate& other) const {  // the heap's top is its largest
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  // Memory that calls share.
  struct Scratch {
    std::vector<Symbol> run;
    std::vector<Link> links;
    std::vector<Candidate> heap;
    std::string affixed;
  };

  static Bpe FromJson(const JsonNode& model);

  // Appends the ids of one pre-tokenized piece of valid UTF-8.
  // A character outside the vocabulary becomes its bytes (<0xE2>) with byte_fallback, else
  // unk_token, else nothing, as in the library `tokenizers`.
  void Encode(std::string_view piece, Work* work, Scratch* scratch,
              std::vector<int32_t>* ids) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  void LoadVocabulary(const JsonNode& node);
  void SetVocabulary(Vocabulary vocabulary);
  void LoadMerges(const JsonNode& node);
  void MergesFromScores(const ScoredVocabulary& scored, const JsonNode& model);
  void AddJoint(std::string_view left, std::string_view right);
  // Adds the prefix and suffix that the place of the character *written asks for, and returns the
  // id of that token; -1 if there is none.
  int32_t AffixedId(bool first, bool last, Scratch* scratch, std::string_view* written) const;
  void EncodeRuns(std::string_view piece, Work* work, Scratch* scratch,
                  std::vector<int32_t>* ids) const;
  // Returns the id of the longest user-defined token at the start of `text`, and sets its *bytes;
  // -1 if there is none.
  int32_t UserDefinedAt(std::string_view text, Work* work, size_t* bytes) const;
  void FinishRun(std::string_view text, bool is_piece, Scratch* scratch,
                 std::vector<int32_t>* ids) const;
  PairTable::Merge FindMerge(int32_t left, int32_t right) const;
  void MergeFew(std::vector<Symbol>* run) const;
  void MergeMany(Scratch* scratch) const;

  Vocabulary vocabulary_;
  CharacterIds characters_;
  WholeTokens wholes_;
  TokenTrie user_defined_;  // texts that are one symbol each, which no merge joins
  PairTable merges_;        // characters that meet in some merge have an entry, too
  std::optional<int32_t> unk_id_;
  std::optional<std::array<int32_t, 256>> byte_ids_;  // with byte_fallback
  std::string prefix_, suffix_;  // of all characters but the first; of the last
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
};

}  // namespace nibble
