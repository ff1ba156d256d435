// SPDX-License-Identifier: Apache-2.0
// The bytes of all tokens of a vocabulary, as a trie: what a grammar refuses of one token it
// refuses of all that begin alike. Built once for a model; immutable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_ranges.h"
#include "text/tokenizer.h"

namespace nibble {

class VocabularyTrie {
 public:
  // vocab_size is the model's: ids beyond the tokenizer's have no token.
  VocabularyTrie(const Tokenizer& tokenizer, int64_t vocab_size);
  // Tokens in the order of their ids; one without bytes is in no text.
  explicit VocabularyTrie(std::span<const std::string> tokens);

  // One byte of one or more tokens. Nodes stand in the order of a walk that visits a node before
  // those below it, which end before node `end`.
  struct Node {
    uint64_t groups;  // of the bytes below it (ByteGroups)
    int32_t end;
    int32_t depth;        // bytes before this one
    int32_t height;       // most bytes behind it
    int32_t first_token;  // in tokens(): those that end here, then those below it
    uint8_t byte;
  };
  const std::vector<Node>& nodes() const { return nodes_; }  // a last one stands behind the end
  const std::vector<int32_t>& tokens() const { return tokens_; }
  std::string_view Bytes(int32_t id) const;  // "" where the id has none

  int64_t vocab_size() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int32_t longest() const { return longest_; }  // bytes of a token

  // The 256 bytes as at most 64 groups of bytes that grammars mostly treat alike, a bit each: those
  // groups of which all bytes are in the set.
  static uint64_t ByteGroups(const grammar::ByteSet& bytes);

 private:
  void Build();

  std::string bytes_;  // of all tokens
  std::vector<size_t> offsets_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  int32_t longest_ = 0;
};

}  // namespace nibble
