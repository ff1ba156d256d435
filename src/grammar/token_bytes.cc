// SPDX-License-Identifier: Apache-2.0
#include "grammar/token_bytes.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr int kByteGroups = 44;

// Control characters, digits, letters of a case and bytes beyond ASCII are one group each; others
// of ASCII are alone.
int ByteGroup(uint8_t byte) {
  if (byte >= 0x80) return 0;
  if (byte < 0x20) return byte == '\n' ? 1 : byte == '\t' ? 2 : byte == '\r' ? 3 : 4;
  if (byte >= '0' && byte <= '9') return 5;
  if (byte >= 'A' && byte <= 'Z') return 6;
  if (byte >= 'a' && byte <= 'z') return 7;
  int group = 8;
  for (int other = 0x20; other < byte; ++other) {
    const bool letter = (other >= 'A' && other <= 'Z') || (other >= 'a' && other <= 'z');
    if (!letter && !(other >= '0' && other <= '9')) ++group;
  }
  return group;
}

uint64_t GroupBit(uint8_t byte) {
  return uint64_t{1} << ByteGroup(byte);
}

}  // namespace

static_assert(kByteGroups <= 64);

uint64_t VocabularyTrie::ByteGroups(const grammar::ByteSet& bytes) {
  uint64_t groups = (uint64_t{1} << kByteGroups) - 1;
  for (int byte = 0; byte < 256; ++byte) {
    if (!bytes[static_cast<size_t>(byte)]) groups &= ~GroupBit(static_cast<uint8_t>(byte));
  }
  return groups;
}

VocabularyTrie::VocabularyTrie(const Tokenizer& tokenizer, int64_t vocab_size) : offsets_{0} {
  for (int64_t id = 0; id < vocab_size; ++id) {
    bytes_ += tokenizer.TokenBytes(static_cast<int32_t>(id));
    offsets_.push_back(bytes_.size());
  }
  Build();
}

VocabularyTrie::VocabularyTrie(std::span<const std::string> tokens) : offsets_{0} {
  for (const std::string& token : tokens) {
    bytes_ += token;
    offsets_.push_back(bytes_.size());
  }
  Build();
}

std::string_view VocabularyTrie::Bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return "";
  const size_t begin = offsets_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(begin, offsets_[static_cast<size_t>(id) + 1] - begin);
}

// Makes the trie from the sorted tokens: each opens nodes for its bytes behind those that it shares
// with the token before.
void VocabularyTrie::Build() {
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (!Bytes(id).empty()) tokens_.push_back(id);
  }
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [&](int32_t a, int32_t b) { return Bytes(a) < Bytes(b); });
  std::vector<size_t> path;  // the open nodes
  const auto close_to = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      nodes_[path.back()].end = static_cast<int32_t>(nodes_.size());
      if (path.size() > 1) {
        const Node& closed = nodes_[path.back()];
        Node& above = nodes_[path[path.size() - 2]];
        above.groups |= closed.groups | GroupBit(closed.byte);
        above.height = std::max(above.height, closed.height + 1);
      }
    }
  };
  std::string_view last;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view token = Bytes(tokens_[i]);
    const auto [differs, in_last] = std::ranges::mismatch(token, last);
    close_to(static_cast<size_t>(differs - token.begin()));
    while (path.size() < token.size()) {
      path.push_back(nodes_.size());
      nodes_.push_back({.groups = 0,
                        .end = 0,
                        .depth = static_cast<int32_t>(path.size()) - 1,
                        .height = 0,
                        .first_token = static_cast<int32_t>(i),
                        .byte = static_cast<uint8_t>(token[path.size() - 1])});
    }
    longest_ = std::max(longest_, static_cast<int32_t>(token.size()));
    last = token;
  }
  close_to(0);
  nodes_.push_back({.groups = 0,
                    .end = static_cast<int32_t>(nodes_.size()) + 1,
                    .depth = 0,
                    .height = 0,
                    .first_token = static_cast<int32_t>(tokens_.size()),
                    .byte = 0});
}

}  // namespace nibble
