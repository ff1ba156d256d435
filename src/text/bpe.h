// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding (Sennrich et al. 2016) as in the "model" of a tokenizer.json of type BPE. A
// piece starts as its characters; the pair of neighbours with the lowest merge rank (leftmost among
// equals) is joined until no pair has a rank. A heap over a linked list of symbols makes that
// O(n log n), because SentencePiece-style models have no pre-tokenizer: a whole text is one piece.
// Neighbouring characters that no merge joins cut the list first, which keeps the heaps small (a
// text falls into words: several times faster).
// A character outside the vocabulary becomes its bytes (<0xE2>) with byte_fallback, else unk_token,
// else nothing, as the files' own library does. Immutable after loading.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/tokenizer_json.h"

namespace nibble {

// A hash with a secret of the process: a file cannot choose keys that collide.
struct SecretHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const;
  // Of a pair: those with one left id lie side by side, as near as the ids, and few can collide.
  size_t operator()(uint64_t pair) const noexcept {
    return Mix(pair >> 32) + static_cast<uint32_t>(pair);
  }

 private:
  // The halves of a product with a secret number, which no other bits of `x` can cancel.
  static uint64_t Mix(uint64_t x) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(x ^ kOffset) * kFactor;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  static uint64_t Random();
  static inline const uint64_t kOffset = Random(), kFactor = Random();
};

// Ids at or above this are refused: tables of this many entries are made from a file's word.
inline constexpr int64_t kMaxTokenId = 1 << 21;
// Longer tokens are refused: a few ids would become a text without bounds. Real ones have 1,024.
inline constexpr size_t kMaxTokenBytes = 8 << 10;
void CheckTokenSize(std::string_view token, const JsonNode& node);

class Bpe {
 public:
  using Vocab = std::unordered_map<std::string, int32_t, SecretHash, std::equal_to<>>;

  static Bpe FromJson(const JsonNode& model);

  // Appends the ids of one pre-tokenized piece of valid UTF-8.
  void Encode(std::string_view piece, std::vector<int32_t>* ids) const;
  std::optional<int32_t> Id(std::string_view token) const;
  const Vocab& vocab() const { return vocab_; }

 private:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = 0;  // of the joined token
  };
  struct Symbol {
    int32_t id;          // -1: joined to the left
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

  void LoadVocab(const JsonNode& node);
  void LoadMerges(const JsonNode& node);
  void AddJoint(std::string_view left, std::string_view right);
  std::vector<Symbol> Symbols(std::string_view piece) const;
  // For `left` and what follows it, if they have a merge.
  bool AddCandidate(const std::vector<Symbol>& symbols, int32_t left,
                    std::vector<Candidate>* heap) const;
  void MergeRun(std::vector<Symbol>* symbols, std::vector<Candidate>* heap) const;
  const Merge* FindMerge(int32_t left, int32_t right) const;

  Vocab vocab_;
  std::unordered_map<uint64_t, Merge, SecretHash> merges_;  // (left id << 32) | right id
  std::unordered_set<uint64_t, SecretHash> joints_;  // ids of characters that meet in some merge
  std::optional<int32_t> unk_id_;
  std::optional<std::array<int32_t, 256>> byte_ids_;  // with byte_fallback
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
};

}  // namespace nibble
