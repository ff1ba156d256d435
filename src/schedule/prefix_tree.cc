// SPDX-License-Identifier: Apache-2.0
#include "schedule/prefix_tree.h"

#include <algorithm>
#include <functional>

namespace nibble {

std::pair<PrefixTree::Node*, size_t> PrefixTree::Best(const Node& node,
                                                      std::span<const int32_t> ids) {
  std::pair<Node*, size_t> best = {nullptr, 0};
  for (Node* child : node.children) {
    const auto same = std::ranges::mismatch(child->ids, ids);
    const auto count = static_cast<size_t>(same.in1 - child->ids.begin());
    if (count > best.second) best = {child, count};
  }
  return best;
}

PrefixTree::Match PrefixTree::Find(std::span<const int32_t> ids) {
  Match match;
  ++calls_;
  Node* node = &root_;
  while (true) {
    const auto [child, count] = Best(*node, ids.subspan(static_cast<size_t>(match.tokens)));
    if (child == nullptr) return match;
    child->used = calls_;
    match.pages.push_back(child->page);
    match.tokens += static_cast<int64_t>(count);
    if (count < kPageTokens) return match;
    node = child;
  }
}

void PrefixTree::Insert(std::span<const int32_t> ids, std::span<PagePool::Page> pages) {
  ++calls_;
  Node* node = &root_;
  for (PagePool::Page& page : pages) {
    const auto piece = ids.first(std::min<size_t>(ids.size(), kPageTokens));
    if (piece.empty()) return;
    ids = ids.subspan(piece.size());
    const auto [child, count] = Best(*node, piece);
    const bool there = child != nullptr && count == piece.size();  // perhaps with more behind it
    const bool shorter = child != nullptr && !there && count == child->ids.size();
    if (there || shorter) {
      node = child;
    } else {
      nodes_.push_back(std::make_unique<Node>());
      node->children.push_back(nodes_.back().get());
      nodes_.back()->parent = node;
      node = nodes_.back().get();
    }
    node->used = calls_;
    if (there) {
      page = node->page;
    } else {
      node->ids.assign(piece.begin(), piece.end());
      node->page = page;
    }
  }
}

int64_t PrefixTree::Evict(int64_t count) {
  const auto can_go = [](const auto& n) { return n->children.empty() && n->page.use_count() == 1; };
  int64_t gone = 0;
  while (gone < count) {
    // Those that go are moved behind the others, the longest unused ones foremost.
    const auto leaves = std::partition(nodes_.begin(), nodes_.end(), std::not_fn(can_go));
    if (leaves == nodes_.end()) break;
    std::ranges::sort(leaves, nodes_.end(), std::greater(), [](const auto& n) { return n->used; });
    const auto most = std::min(count - gone, nodes_.end() - leaves);
    for (int64_t i = 0; i < most; ++i) {
      std::erase(nodes_.back()->parent->children, nodes_.back().get());
      nodes_.pop_back();
    }
    gone += most;  // a text goes from its end: what was before these may go now
  }
  return gone;
}

int64_t PrefixTree::evictable() const {
  return std::ranges::count_if(nodes_, [](const auto& n) { return n->page.use_count() == 1; });
}

}  // namespace nibble
