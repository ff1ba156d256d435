// SPDX-License-Identifier: Apache-2.0
#include "schedule/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "compute/backend.h"
#include "models/plan.h"

namespace nibble {
namespace {

// The tree agrees with a list of all texts that were put in; each of its pages stands for one
// beginning of a text.
TEST(PrefixTree, FindsTheLongestBeginningThatWasPutIn) {
  const auto backend = MakeBackend("cpu", false);
  const KvSpec kv = {.kv_heads = 1, .head_dim = 64, .k = {.bits = 32}, .v = {.bits = 32}};
  const KvGroups groups(kv, 1);
  PagePool pool(groups.page_bytes(), *backend, 300);
  Rng rng(1);
  PrefixTree tree(groups);
  std::vector<std::vector<int32_t>> texts;
  // The tokens that a page holds, by its address.
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
      ASSERT_EQ(static_cast<int64_t>(match.rows.size()), PagesOf(match.tokens));
      for (size_t i = 0; i < expected; ++i) {
        ASSERT_EQ(content[match.rows[i / kPageTokens][0].get()][i % kPageTokens], text[i]);
      }
    }
    std::vector<PageRow> rows;
    for (size_t i = 0; i < text.size(); i += kPageTokens) {
      if (pool.in_use() == pool.capacity()) {
        // Texts lose their ends.
        ASSERT_EQ(tree.Evict(1), 1);
        for (auto& t : texts) t.resize(static_cast<size_t>(tree.Find(t).tokens));
      }
      rows.push_back({pool.Take()});
      ASSERT_NE(rows.back()[0], nullptr);
      content[rows.back()[0].get()] = {
          text.begin() + static_cast<int64_t>(i),
          text.begin() + static_cast<int64_t>(std::min(text.size(), i + kPageTokens))};
    }
    tree.Insert(text, rows);
    texts.push_back(text);
    rows.clear();
    ASSERT_EQ(tree.evictable(), pool.in_use());
  }
  EXPECT_EQ(pool.in_use(), pool.capacity());
  EXPECT_EQ(tree.Evict(1000), pool.capacity());
  EXPECT_EQ(pool.in_use(), 0);
}

TEST(PrefixTree, PagesThatSomebodyHoldsStay) {
  const auto backend = MakeBackend("cpu", false);
  const KvSpec kv = {.kv_heads = 1, .head_dim = 64, .k = {.bits = 32}, .v = {.bits = 32}};
  const KvGroups groups(kv, 1);
  PagePool pool(groups.page_bytes(), *backend, 10);
  PrefixTree tree(groups);
  const std::vector<int32_t> text(3 * kPageTokens, 7);
  std::vector<PageRow> pages = {{pool.Take()}, {pool.Take()}, {pool.Take()}};
  tree.Insert(text, pages);
  std::vector<PageRow> twice = {{pool.Take()}, {pool.Take()}, {pool.Take()}};
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

TEST(PrefixTree, WhatWasUsedLastGoesLast) {
  const auto backend = MakeBackend("cpu", false);
  const KvSpec kv = {.kv_heads = 1, .head_dim = 64, .k = {.bits = 32}, .v = {.bits = 32}};
  const KvGroups groups(kv, 1);
  PagePool pool(groups.page_bytes(), *backend, 10);
  PrefixTree tree(groups);
  const auto text = [](int32_t id) { return std::vector<int32_t>(kPageTokens, id); };
  const auto insert = [&](int32_t id) {
    std::vector<PageRow> rows = {{pool.Take()}};
    tree.Insert(text(id), rows);
  };
  for (const int32_t id : {1, 2, 3}) insert(id);
  tree.Find(text(1));
  insert(2);
  for (const int32_t id : {3, 1, 2}) {
    EXPECT_EQ(tree.Evict(1), 1);
    EXPECT_EQ(tree.Find(text(id)).tokens, 0) << id;
  }
}

// Two layers, one of which sees 100 tokens. Its older pages were given back.
class WindowedTree : public testing::Test {
 protected:
  static ModelConfig Config() {
    ModelConfig c;
    c.layers = 2;
    c.context = 4096;
    c.heads = c.kv_heads = 1, c.head_dim = 64;
    c.specs = {{}, {.sliding_window = 100}};
    return c;
  }
  static std::vector<int32_t> Text(size_t tokens) { return std::vector<int32_t>(tokens, 7); }
  std::vector<PageRow> Rows(int64_t tokens) {
    std::vector<PageRow> rows;
    for (int64_t i = 0; i < PagesOf(tokens); ++i) {
      rows.push_back({pool_.Take(), pool_.Take()});
      if (i < groups_.FirstPage(1, tokens)) rows.back()[1] = nullptr;
    }
    return rows;
  }

  static std::vector<KvSpec> Caches() {
    Plan floats;
    floats.k = floats.v = {.bits = 32};
    return LayerCaches(Config(), floats);
  }

  const KvGroups groups_{Config(), Caches()};
  const std::unique_ptr<Backend> backend_ = MakeBackend("cpu", false);
  PagePool pool_{groups_.page_bytes(), *backend_, 20};
  PrefixTree tree_{groups_};
};

TEST_F(WindowedTree, TextsGoOnWhereTheirWindowsAreWhole) {
  std::vector<PageRow> rows = Rows(330);  // windows from page 3 on
  tree_.Insert(Text(330), rows);
  const PrefixTree::Match whole = tree_.Find(Text(1000));
  EXPECT_EQ(whole.tokens, 330);
  EXPECT_EQ(whole.rows, rows);
  EXPECT_EQ(tree_.Find(Text(200)).tokens, 0) << "its window is gone";
  // The shorter text has a window before its own end, which the longer text has no use for.
  std::vector<PageRow> shorter = Rows(256);  // windows from page 2 on
  const PagePool::Page page = shorter[2][1];
  tree_.Insert(Text(256), shorter);
  const PrefixTree::Match part = tree_.Find(Text(256));
  EXPECT_EQ(part.tokens, 256);
  EXPECT_EQ(part.rows[2][1], page);
  EXPECT_EQ(part.rows[3], rows[3]) << "what is there stays";
  EXPECT_EQ(part.rows[1][1], nullptr);
  EXPECT_EQ(tree_.Find(Text(1000)).rows, rows);
}

// The longer text gave the window's part of page 2 back, and the shorter one has 22 of its tokens.
TEST_F(WindowedTree, APartlyFilledPageDoesNotStandForAFullOne) {
  std::vector<PageRow> rows = Rows(330);
  tree_.Insert(Text(330), rows);
  std::vector<PageRow> shorter = Rows(150);  // windows from page 0 on; 22 tokens of page 2
  tree_.Insert(Text(150), shorter);
  EXPECT_EQ(tree_.Find(Text(192)).tokens, 128);
}

TEST_F(WindowedTree, WindowsGoFromTheTextThatWasUsedLongestAgo) {
  std::vector<PageRow> first = Rows(100), second = Rows(100);
  const std::vector<int32_t> other(100, 8);
  tree_.Insert(Text(100), first);
  tree_.Insert(other, second);
  tree_.Find(Text(100));
  for (std::vector<PageRow>* rows : {&first, &second}) {
    for (PageRow& row : *rows) row[1] = nullptr;
  }
  EXPECT_EQ(tree_.Evict(1), 1);
  EXPECT_EQ(tree_.Find(Text(100)).tokens, 100);
  EXPECT_EQ(tree_.Find(other).tokens, 0);
}

TEST_F(WindowedTree, WindowsGoFromTextsThatGoOn) {
  std::vector<PageRow> rows = Rows(330);
  tree_.Insert(Text(330), rows);
  EXPECT_EQ(tree_.evictable(), 0);
  for (PageRow& row : rows) row[1] = nullptr;
  EXPECT_EQ(tree_.evictable(), 3);
  EXPECT_EQ(tree_.Evict(2), 2);
  EXPECT_EQ(tree_.Find(Text(330)).tokens, 0);
  rows.clear();
  EXPECT_EQ(tree_.Evict(100), 7);
  EXPECT_EQ(pool_.in_use(), 0);
}

}  // namespace
}  // namespace nibble
