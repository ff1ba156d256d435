// SPDX-License-Identifier: Apache-2.0
#include "text/token_trie.h"

#include <algorithm>

#include "base/error.h"

namespace nibble {
namespace {

// A node for each byte at most: 13 bytes of memory. The largest known vocabularies have 2 MB.
constexpr size_t kMaxTrieBytes = 8 << 20;

}  // namespace

TokenTrie::TokenTrie(std::vector<Token> tokens, const std::string& where) {
  size_t bytes = 0;
  for (const Token& token : tokens) bytes += token.text.size();
  if (bytes > kMaxTrieBytes) {
    Fail("{}: tokens to look for have {} bytes, at most {} are accepted", where, bytes,
         kMaxTrieBytes);
  }
  std::erase_if(tokens, [](const Token& token) { return token.text.empty(); });
  if (tokens.empty()) return;
  std::ranges::sort(tokens, {}, &Token::text);
  const auto same = [](const Token& a, const Token& b) { return a.text == b.text; };
  tokens.erase(std::unique(tokens.begin(), tokens.end(), same), tokens.end());
  // Nodes are made level by level. A range holds the tokens of one node, which share the bytes that
  // lead to it.
  struct Range {
    size_t begin, end;
  };
  std::vector<Range> level = {{0, tokens.size()}}, next;
  nodes_.emplace_back();
  labels_.push_back(0);
  size_t node = 0;
  for (size_t depth = 0; !level.empty(); ++depth, level.swap(next)) {
    next.clear();
    for (auto [begin, end] : level) {
      Node parent = {.first = static_cast<uint32_t>(nodes_.size())};
      if (tokens[begin].text.size() == depth) parent.value = tokens[begin++].value;
      while (begin < end) {
        const char byte = tokens[begin].text[depth];
        size_t last = begin;
        while (last < end && tokens[last].text[depth] == byte) ++last;
        nodes_.emplace_back();
        labels_.push_back(static_cast<uint8_t>(byte));
        next.push_back({begin, last});
        begin = last;
        ++parent.count;
      }
      nodes_[node++] = parent;
    }
  }
  const Node& root = nodes_[0];
  for (uint32_t i = root.first; i < root.first + root.count; ++i) roots_[labels_[i]] = i;
}

}  // namespace nibble
