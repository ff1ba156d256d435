// SPDX-License-Identifier: Apache-2.0
// A trie that finds the tokens a text starts with. Children of a node stand side by side and are
// found by their bytes; those of the root have a table, since every search begins there. Immutable
// once built.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "text/work.h"

namespace nibble {

class TokenTrie {
 public:
  struct Token {
    std::string_view text;
    int32_t value;
  };
  TokenTrie() = default;
  // `where` names the tokens in messages. An empty text is never found.
  TokenTrie(std::vector<Token> tokens, const std::string& where);

  bool empty() const { return nodes_.empty(); }

  // Calls found(bytes, value) for each token that `text` starts with, the shortest first.
  template <typename Found>
  void ForEachPrefix(std::string_view text, Work* work, const Found& found) const {
    if (nodes_.empty() || text.empty()) return;
    uint32_t node = roots_[static_cast<unsigned char>(text[0])];
    size_t depth = 1;
    for (; node != 0; ++depth) {
      const Node& n = nodes_[node];
      if (n.value >= 0) found(depth, n.value);
      if (depth == text.size() || n.count == 0) break;
      const uint8_t* labels = labels_.data() + n.first;
      const void* hit = std::memchr(labels, static_cast<unsigned char>(text[depth]), n.count);
      node = hit == nullptr
                 ? 0
                 : n.first + static_cast<uint32_t>(static_cast<const uint8_t*>(hit) - labels);
    }
    work->Charge(depth);
  }

 private:
  struct Node {
    uint32_t first = 0;  // of its children
    uint16_t count = 0;  // of them
    int32_t value = -1;  // of the token that ends here
  };

  std::vector<Node> nodes_;      // the first is the root
  std::vector<uint8_t> labels_;  // the byte that leads to each node
  std::array<uint32_t, 256> roots_{};
};

}  // namespace nibble
