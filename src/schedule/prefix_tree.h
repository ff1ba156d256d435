// SPDX-License-Identifier: Apache-2.0
// The pages of texts that were computed, by the tokens they hold: who begins with the same tokens
// begins with these pages. A tree whose nodes are pages (after Zheng et al. 2024, "SGLang",
// RadixAttention); the keys and values of a page follow from the tokens on the way to it and from
// nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/kv_groups.h"
#include "engine/page_pool.h"

namespace nibble {

class PrefixTree {
 public:
  // `groups` must outlive this.
  explicit PrefixTree(const KvGroups& groups) : groups_(groups) {}

  struct Match {
    std::vector<PageRow> rows;  // the last pages, if `tokens` end inside them, are a copy's source
    int64_t tokens = 0;
  };

  // The longest beginning of `ids` behind which a text can go on: all that its layers read is
  // there.
  Match Find(std::span<const int32_t> ids);
  // `rows` hold the first tokens of `ids`, which nobody writes over any more; the last pages may be
  // partly filled. Pages that are there already take the place of those given.
  void Insert(std::span<const int32_t> ids, std::span<PageRow> rows);
  // Forgets pages that nobody else holds, those that were not used for the longest time first,
  // until `count` are gone. Returns how many went.
  int64_t Evict(int64_t count);
  // The pages that Evict could let go of: whoever holds a page that all layers read holds those
  // before it, too.
  int64_t evictable() const;

 private:
  struct Node {
    std::vector<int32_t> ids;  // of this page; fewer than kPageTokens only in leaves
    PageRow row;
    uint64_t used = 0;  // the number of the call that used it last
    Node* parent = nullptr;
    std::vector<Node*> children;
  };
  // The child that shares the most tokens with the beginning of `ids`, and how many.
  static std::pair<Node*, size_t> Best(const Node& node, std::span<const int32_t> ids);

  void Shorten(Match& match) const;
  int64_t DropWindows(int64_t count);

  const KvGroups& groups_;
  Node root_;
  std::vector<std::unique_ptr<Node>> nodes_;  // all but the root
  uint64_t calls_ = 0;
};

}  // namespace nibble
