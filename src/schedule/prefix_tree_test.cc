// SPDX-License-Identifier: Apache-2.0
#include "schedule/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "backends/interface/backend.h"
#include "base/rng.h"

namespace nibble {
namespace {

// Beside all texts that were put in: a page of the tree stands for one beginning of a text.
TEST(PrefixTree, FindsTheLongestBeginningThatWasPutIn) {
  const auto backend = MakeBackend("cpu", false);
  const KvSpec kv = {.kv_heads = 1, .head_dim = 64, .k = {.bits = 32}, .v = {.bits = 32}};
  PagePool pool(kv, 1, *backend, 300);
  Rng rng(1);
  PrefixTree tree;
  std::vector<std::vector<int32_t>> texts;
  // What a page holds, by its address.
  std::map<const std::byte*, std::vector<int32_t>> content;
  for (int round = 0; round < 400; ++round) {
    std::vector<int32_t> text;
    if (!texts.empty() && rng.Below(3) > 0) {
      const auto& other = texts[rng.Below(texts.size())];
      text.assign(other.begin(), other.begin() + static_cast<int64_t>(rng.Below(other.size() + 1)));
    }
    for (uint64_t i = 1 + rng.Below(150); i > 0; --i) {
      text.push_back(static_cast<int32_t>(rng.Below(3)));
    }
    size_t expected = 0;
    for (const auto& other : texts) {
      const auto same = std::ranges::mismatch(other, text);
      expected = std::max(expected, static_cast<size_t>(same.in1 - other.begin()));
    }
    {
      const PrefixTree::Match match = tree.Find(text);
      ASSERT_EQ(match.tokens, static_cast<int64_t>(expected));
      ASSERT_EQ(static_cast<int64_t>(match.pages.size()), PagesOf(match.tokens));
      for (size_t i = 0; i < expected; ++i) {
        ASSERT_EQ(content[match.pages[i / kPageTokens].get()][i % kPageTokens], text[i]);
      }
    }
    std::vector<PagePool::Page> pages;
    for (size_t i = 0; i < text.size(); i += kPageTokens) {
      if (pool.in_use() == pool.capacity()) {
        // Texts lose their ends.
        ASSERT_EQ(tree.Evict(1), 1);
        for (auto& t : texts) t.resize(static_cast<size_t>(tree.Find(t).tokens));
      }
      pages.push_back(pool.Take());
      ASSERT_NE(pages.back(), nullptr);
      content[pages.back().get()] = {
          text.begin() + static_cast<int64_t>(i),
          text.begin() + static_cast<int64_t>(std::min(text.size(), i + kPageTokens))};
    }
    tree.Insert(text, pages);
    texts.push_back(text);
    pages.clear();
    ASSERT_EQ(tree.evictable(), pool.in_use());
  }
  EXPECT_EQ(pool.in_use(), pool.capacity());
  EXPECT_EQ(tree.Evict(1000), pool.capacity());
  EXPECT_EQ(pool.in_use(), 0);
}

TEST(PrefixTree, PagesThatSomebodyHoldsStay) {
  const auto backend = MakeBackend("cpu", false);
  const KvSpec kv = {.kv_heads = 1, .head_dim = 64, .k = {.bits = 32}, .v = {.bits = 32}};
  PagePool pool(kv, 1, *backend, 10);
  PrefixTree tree;
  const std::vector<int32_t> text(3 * kPageTokens, 7);
  std::vector<PagePool::Page> pages = {pool.Take(), pool.Take(), pool.Take()};
  tree.Insert(text, pages);
  std::vector<PagePool::Page> twice = {pool.Take(), pool.Take(), pool.Take()};
  EXPECT_EQ(pool.in_use(), 6);
  tree.Insert(text, twice);
  EXPECT_EQ(twice, pages);
  EXPECT_EQ(pool.in_use(), 3);
  twice.clear();
  pages.pop_back();
  EXPECT_EQ(tree.evictable(), 1);
  EXPECT_EQ(tree.Evict(3), 1);
  pages.clear();
  EXPECT_EQ(tree.Evict(3), 2);
}

}  // namespace
}  // namespace nibble
