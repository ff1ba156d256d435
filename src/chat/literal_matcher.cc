// SPDX-License-Identifier: Apache-2.0
#include "chat/literal_matcher.h"

#include <utility>

#include "base/error.h"

namespace nibble {

LiteralMatcher::LiteralMatcher(const std::vector<std::string>& literals) {
  const auto add_node = [&](int depth) {
    NIBBLE_CHECK(nodes_.size() < 4096, "literals too long");
    nodes_.emplace_back().next.fill(-1);
    nodes_.back().depth = static_cast<int16_t>(depth);
    return static_cast<int16_t>(nodes_.size() - 1);
  };
  add_node(0);
  for (size_t i = 0; i < literals.size(); ++i) {
    int16_t node = 0;
    for (const char c : literals[i]) {
      const auto byte = static_cast<unsigned char>(c);
      if (nodes_[node].next[byte] < 0) {
        const int16_t added = add_node(nodes_[node].depth + 1);
        nodes_[node].next[byte] = added;
      }
      node = nodes_[node].next[byte];
    }
    if (node != 0) nodes_[node].literal = static_cast<int16_t>(i);
  }
  // Breadth first: the transitions of the longest proper suffix are complete when they are copied.
  std::vector<std::pair<int16_t, int16_t>> queue = {{0, 0}};  // node, its longest suffix
  for (size_t head = 0; head < queue.size(); ++head) {
    const auto [node, suffix] = queue[head];
    for (size_t byte = 0; byte < 256; ++byte) {
      const int16_t fallback = node == 0 ? int16_t{0} : nodes_[suffix].next[byte];
      int16_t& next = nodes_[node].next[byte];
      if (next < 0) {
        next = fallback;
      } else {
        queue.emplace_back(next, fallback);
      }
    }
  }
}

LiteralMatcher::Found LiteralMatcher::Push(char c) {
  held_ += c;
  at_ = nodes_[at_].next[static_cast<unsigned char>(c)];
  const size_t plain = held_.size() - static_cast<size_t>(nodes_[at_].depth);
  plain_.assign(held_, 0, plain);
  const int literal = nodes_[at_].literal;
  if (literal < 0) {
    held_.erase(0, plain);
  } else {
    held_.clear();
    at_ = 0;
  }
  return {plain_, literal};
}

std::string LiteralMatcher::Flush() {
  at_ = 0;
  return std::exchange(held_, "");
}

}  // namespace nibble
