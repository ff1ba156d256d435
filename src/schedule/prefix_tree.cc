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
    if (child == nullptr) break;
    child->used = calls_;
    match.rows.push_back(child->row);
    match.tokens += static_cast<int64_t>(count);
    if (count < kPageTokens) break;
    node = child;
  }
  Shorten(match);
  return match;
}

// Shortens a match to where the windows before its end are whole, without the pages before these.
void PrefixTree::Shorten(Match& match) const {
  const auto missing = [&]() -> int64_t {  // a page that is read and not there, or -1
    for (int64_t row = PagesOf(match.tokens) - 1; row >= 0; --row) {
      for (int64_t g = 0; g < groups_.count(); ++g) {
        const auto& page = match.rows[static_cast<size_t>(row)][static_cast<size_t>(g)];
        if (page == nullptr && groups_.Reads(g, row, match.tokens)) return row;
      }
    }
    return -1;
  };
  for (int64_t row = missing(); row >= 0; row = missing()) match.tokens = row * kPageTokens;
  match.rows.resize(static_cast<size_t>(PagesOf(match.tokens)));
  for (int64_t g = 0; g < groups_.count(); ++g) {
    for (int64_t row = 0; row < std::ssize(match.rows); ++row) {
      if (groups_.Reads(g, row, match.tokens)) continue;
      match.rows[static_cast<size_t>(row)][static_cast<size_t>(g)] = nullptr;
    }
  }
}

void PrefixTree::Insert(std::span<const int32_t> ids, std::span<PageRow> rows) {
  ++calls_;
  Node* node = &root_;
  for (PageRow& row : rows) {
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
    if (!there) {
      node->ids.assign(piece.begin(), piece.end());
      node->row = row;
      continue;
    }
    for (size_t g = 0; g < row.size(); ++g) {
      PagePool::Page& page = node->row[g];
      if (page != nullptr) {
        row[g] = page;
      } else if (piece.size() == node->ids.size()) {
        page = row[g];
      }
    }
  }
}

namespace {

// The number of a row's pages that the tree alone holds.
int64_t Free(const PageRow& row) {
  return std::ranges::count_if(row, [](const auto& page) { return page.use_count() == 1; });
}

int64_t Pages(const PageRow& row) {
  return std::ssize(row) - std::ranges::count(row, nullptr);
}

}  // namespace

int64_t PrefixTree::Evict(int64_t count) {
  const auto can_go = [](const auto& n) {
    return n->children.empty() && Free(n->row) == Pages(n->row);
  };
  int64_t gone = 0;
  while (gone < count) {
    // Nodes that can go are moved behind the others, the longest unused ones last.
    const auto leaves = std::partition(nodes_.begin(), nodes_.end(), std::not_fn(can_go));
    if (leaves == nodes_.end()) return gone + DropWindows(count - gone);
    std::ranges::sort(leaves, nodes_.end(), std::greater(), [](const auto& n) { return n->used; });
    const auto kept = static_cast<size_t>(leaves - nodes_.begin());
    while (gone < count && nodes_.size() > kept) {
      gone += Pages(nodes_.back()->row);
      std::erase(nodes_.back()->parent->children, nodes_.back().get());
      nodes_.pop_back();
    }
    // A text goes from its end: what was before these may go now.
  }
  return gone;
}

// Lets go of pages of texts that go on, which the sequences that hold these texts have given back.
int64_t PrefixTree::DropWindows(int64_t count) {
  std::ranges::sort(nodes_, {}, [](const auto& n) { return n->used; });
  int64_t gone = 0;
  for (const auto& node : nodes_) {
    for (PagePool::Page& page : node->row) {
      if (gone == count) return gone;
      if (page.use_count() == 1) page = nullptr, ++gone;
    }
  }
  return gone;
}

int64_t PrefixTree::evictable() const {
  int64_t pages = 0;
  for (const auto& node : nodes_) pages += Free(node->row);
  return pages;
}

}  // namespace nibble
