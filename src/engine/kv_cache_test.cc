// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_cache.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "compute/gpu_testing.h"
#include "engine/engine_testing.h"
#include "engine/session.h"
#include "formats/quantizer.h"
#include "models/plan.h"

namespace nibble {
namespace {

const KvSpec kFourBits = {.kv_heads = 2, .head_dim = 64, .k = {.bits = 4}, .v = {.bits = 4}};

KvGroups GroupsOf(const std::vector<LayerSpec>& specs, int64_t context = 1 << 17) {
  ModelConfig c;
  c.layers = static_cast<int64_t>(specs.size());
  c.context = context;
  c.heads = 4, c.kv_heads = kFourBits.kv_heads, c.head_dim = kFourBits.head_dim;
  c.specs = specs;
  Plan plan;
  plan.k = kFourBits.k, plan.v = kFourBits.v;
  return {c, LayerCaches(c, plan)};
}

KvGroups WithWindows(const std::vector<int64_t>& windows, int64_t context = 1 << 17) {
  std::vector<LayerSpec> specs;
  for (const int64_t window : windows) specs.push_back({.sliding_window = window});
  return GroupsOf(specs, context);
}

int64_t LayersOf(const KvGroups& groups) {  // in a page
  return groups.page_bytes() / kFourBits.page_bytes();
}

std::vector<int64_t> EverySixthSeesAll(size_t layers, int64_t window) {
  std::vector<int64_t> windows;
  for (size_t i = 0; i < layers; ++i) windows.push_back(i % 6 == 5 ? 0 : window);
  return windows;
}

TEST(KvGroups, HaveAsManyLayersEach) {
  for (const size_t layers : {12, 26, 34, 48, 62}) {
    const KvGroups groups = WithWindows(EverySixthSeesAll(layers, 1024));
    ASSERT_LE(groups.count(), 8);
    ASSERT_LE(groups.count() * LayersOf(groups), static_cast<int64_t>(layers) * 6 / 5);
    std::vector<std::vector<int64_t>> found(static_cast<size_t>(groups.count()));
    for (size_t i = 0; i < layers; ++i) {
      const auto [group, offset] = groups.place(static_cast<int64_t>(i));
      auto& members = found[static_cast<size_t>(group)];
      EXPECT_EQ(offset, std::ssize(members) * kFourBits.page_bytes()) << "a place of its own";
      members.push_back(static_cast<int64_t>(i));
      EXPECT_LT(offset, groups.page_bytes());
      EXPECT_EQ(groups.FirstPage(group, 4096) == 0, i % 6 == 5);
    }
  }
  const KvGroups of48 = WithWindows(EverySixthSeesAll(48, 1024));
  const KvGroups of62 = WithWindows(EverySixthSeesAll(62, 1024));
  EXPECT_EQ(LayersOf(of48), 8);
  EXPECT_EQ(of48.MaxPages(256, 1), 256 + 5 * 17) << "16384 tokens: 4.5 times less than 6 * 256";
  EXPECT_EQ(LayersOf(of62), 11) << "ten see all, and none beside them has an empty page of its own";
  EXPECT_EQ(of62.count() * LayersOf(of62), 66);
  EXPECT_EQ(LayersOf(WithWindows({128, 0, 128, 0})), 2);
  EXPECT_EQ(WithWindows({0, 0, 0, 0}).count(), 1);
  EXPECT_EQ(WithWindows({64, 64, 64, 64}).count(), 1);
  EXPECT_EQ(WithWindows({64, 0, 64, 0}, 64).count(), 1) << "windows of the whole context";
}

// Gemma 4 of 60 layers: every sixth sees all, with longer heads and fewer of them.
TEST(KvGroups, PutHeadsAlikeIntoPagesOfOneSize) {
  std::vector<LayerSpec> specs;
  for (int i = 1; i <= 60; ++i) {
    specs.push_back(i % 6 == 0 ? LayerSpec{.kv_heads = 1, .head_dim = 256}
                               : LayerSpec{.sliding_window = 1024});
  }
  const KvGroups groups = GroupsOf(specs);
  KvSpec of_longer = kFourBits;
  of_longer.kv_heads = 1, of_longer.head_dim = 256;
  const int64_t longer = of_longer.page_bytes();
  ASSERT_GT(longer, kFourBits.page_bytes());
  std::map<int64_t, int64_t> ends;  // of each group
  for (int64_t i = 0; i < 60; ++i) {
    const auto [group, offset] = groups.place(i);
    const bool sees_all = (i + 1) % 6 == 0;
    EXPECT_EQ(groups.sees_all(group), sees_all);
    EXPECT_GE(offset, ends[group]) << "each has a place of its own";
    ends[group] = offset + (sees_all ? longer : kFourBits.page_bytes());
    EXPECT_LE(ends[group], groups.page_bytes());
  }
  EXPECT_EQ(std::ssize(ends), groups.count());
  // Ten long ones fill a page; eighteen of the others find room in it, fifty in three.
  EXPECT_EQ(groups.page_bytes(), 10 * longer);
  EXPECT_EQ(groups.count(), 4);
}

TEST(KvGroups, LayersThatReadKeysOfOthersHaveTheirPlace) {
  std::vector<LayerSpec> specs(5);
  specs[0].sliding_window = specs[1].sliding_window = specs[3].sliding_window = 64;
  specs[3].kv_layer = 1, specs[4].kv_layer = 2;
  const KvGroups groups = GroupsOf(specs);
  specs.resize(3);
  const KvGroups own = GroupsOf(specs);
  EXPECT_EQ(groups.page_bytes(), own.page_bytes());
  EXPECT_EQ(groups.count(), own.count());
  for (const auto& [reader, lender] : {std::pair(3, 1), {4, 2}}) {
    EXPECT_EQ(groups.place(reader).group, groups.place(lender).group);
    EXPECT_EQ(groups.place(reader).offset, groups.place(lender).offset);
  }
}

// Formats that differ from layer to layer make places of different sizes, which leave little empty,
// and nowhere more than fewer bits have won.
TEST(KvGroups, GiveEachFormatItsRoom) {
  Rng rng(7);
  for (const size_t layers : {1, 18, 26, 48}) {
    ModelConfig c;
    c.layers = static_cast<int64_t>(layers), c.context = 1 << 17;
    c.heads = 4, c.kv_heads = kFourBits.kv_heads, c.head_dim = kFourBits.head_dim;
    for (const int64_t window : EverySixthSeesAll(layers, 512)) {
      c.specs.push_back({.sliding_window = window});
    }
    for (int draw = 0; draw < 20; ++draw) {
      std::vector<KvSpec> caches(layers, kFourBits);
      KvSpec wide = kFourBits;
      wide.k.bits = wide.v.bits = 8;
      for (KvSpec& cache : caches) {
        for (FormatSpec* part : {&cache.k, &cache.v}) part->bits = rng.Below(2) == 0 ? 4 : 8;
      }
      const KvGroups groups(c, caches);
      std::map<std::pair<int64_t, int64_t>, int64_t> ends;  // of what lies at each place
      int64_t needed = 0, seeing_all = 0, pages_seeing_all = 0;
      for (size_t i = 0; i < layers; ++i) {
        const auto [group, offset] = groups.place(static_cast<int64_t>(i));
        EXPECT_EQ(groups.sees_all(group), c.specs[i].sliding_window == 0);
        EXPECT_TRUE(ends.emplace(std::pair(group, offset), offset + caches[i].page_bytes()).second);
        needed += caches[i].page_bytes(), seeing_all += groups.sees_all(group);
      }
      std::pair<int64_t, int64_t> last = {-1, 0};
      for (const auto& [place, end] : ends) {
        EXPECT_TRUE(place.first != last.first || place.second >= last.second) << "they overlap";
        EXPECT_LE(end, groups.page_bytes());
        last = {place.first, end};
      }
      for (int64_t g = 0; g < groups.count(); ++g) pages_seeing_all += groups.sees_all(g);
      EXPECT_LE(groups.count() * groups.page_bytes(), needed * 4 / 3);
      EXPECT_LE(pages_seeing_all * groups.page_bytes(), seeing_all * wide.page_bytes());
    }
  }
}

TEST(KvGroups, KeepTheWindowOfTheNextToken) {
  const KvGroups groups = WithWindows({0, 128});
  for (int64_t tokens = 0; tokens < 1000; ++tokens) {
    // The next token, at position `tokens`, sees 128 keys with itself.
    const int64_t first = std::max<int64_t>(0, tokens - 127);
    EXPECT_EQ(groups.FirstPage(1, tokens), first / kPageTokens);
    for (const int64_t step : {1, 64, 100}) {
      const int64_t end = PagesOf(tokens + step);
      EXPECT_LE(end - first / kPageTokens, groups.MaxPages(1, end, step));
    }
  }
  EXPECT_EQ(groups.MaxPages(10000, 1), 10000 + 3);
}

// Two windows and the recent form: each layer has a place for either, and none overlap.
TEST(KvGroups, KeepTheFirstPageAndTheLastOnesOfTheRecentForm) {
  ModelConfig c;
  c.layers = 12, c.context = 1 << 17;
  c.heads = 4, c.kv_heads = kFourBits.kv_heads, c.head_dim = kFourBits.head_dim;
  for (const int64_t window : EverySixthSeesAll(12, 512)) {
    c.specs.push_back({.sliding_window = window});
  }
  KvSpec cache = kFourBits;
  cache.recent_bits = 8;
  const KvGroups groups(c, std::vector<KvSpec>(12, cache));
  std::map<std::pair<int64_t, int64_t>, int64_t> ends;  // of what lies at each place
  for (int64_t i = 0; i < 12; ++i) {
    const auto narrow = groups.place(i), recent = groups.recent_place(i);
    EXPECT_FALSE(groups.recent(narrow.group));
    EXPECT_TRUE(groups.recent(recent.group));
    ends[{narrow.group, narrow.offset}] = narrow.offset + cache.page_bytes();
    ends[{recent.group, recent.offset}] = recent.offset + cache.Recent().page_bytes();
  }
  ASSERT_EQ(ends.size(), 24u);
  std::pair<int64_t, int64_t> last = {-1, 0};
  for (const auto& [place, end] : ends) {
    EXPECT_TRUE(place.first != last.first || place.second >= last.second) << "they overlap";
    EXPECT_LE(end, groups.page_bytes());
    last = {place.first, end};
  }
  const int64_t group = groups.recent_place(0).group;
  for (int64_t tokens = 0; tokens < 1000; ++tokens) {
    const int64_t first = groups.FirstPage(group, tokens);
    for (int64_t page = groups.kept_pages(group); page < PagesOf(tokens); ++page) {
      EXPECT_EQ(page >= first, ReadsRecent(tokens, page)) << tokens << " " << page;
    }
    for (const int64_t step : {1, 64, 100}) {
      const int64_t end = PagesOf(tokens + step);
      const int64_t held = std::min<int64_t>(first, 1) + end - first;
      EXPECT_LE(held, groups.MaxPages(group, end, step)) << tokens << " + " << step;
    }
  }
}

std::vector<int32_t> Text(size_t tokens) {
  Rng rng(5);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens; ++i) ids.push_back(static_cast<int32_t>(2 + rng.Below(4000)));
  return ids;
}

// Logits behind `ids`, which come in pieces.
std::vector<float> InPieces(Model& model, std::span<const int32_t> ids, size_t piece,
                            KvCache& cache) {
  std::vector<float> result;
  for (; !ids.empty(); ids = ids.subspan(std::min(piece, ids.size()))) {
    const Model::Sequence sequence = {ids.first(std::min(piece, ids.size())), &cache};
    const float* x = model.Forward({&sequence, 1});
    if (ids.size() > piece) continue;
    const int32_t last = static_cast<int32_t>(sequence.ids.size()) - 1;
    const float* logits = model.Logits(x, last + 1, {&last, 1});
    result.assign(logits, logits + model.config().vocab_size);
  }
  return result;
}

// In one piece nothing is given back before all is read.
TEST(KvCache, PagesOutsideOfWindowsGoBackAndNothingChanges) {
  const auto model = TinyWithWindows(MakeBackend("cpu", false));
  const std::vector<int32_t> ids = Text(700);
  KvCache whole = model->MakeCache();
  const auto expected = InPieces(*model, ids, ids.size(), whole);
  const auto page = static_cast<size_t>(model->kv_groups().page_bytes());
  EXPECT_EQ(whole.bytes(), 3 * 11 * page);
  for (const size_t piece : {1, 50, 64, 300}) {
    KvCache cache = model->MakeCache();
    EXPECT_EQ(InPieces(*model, ids, piece, cache), expected) << piece;
    if (piece == 1) {
      EXPECT_LE(cache.bytes(), (11 + 2 * 3) * page);
    }
  }
}

TEST(KvCache, ForgetsAllWhereTheWindowIsGone) {
  const auto model = TinyWithWindows(MakeBackend("cpu", false));
  const std::vector<int32_t> ids = Text(400);
  KvCache fresh = model->MakeCache(), cache = model->MakeCache();
  const auto expected = InPieces(*model, ids, ids.size(), fresh);
  InPieces(*model, ids, 10, cache);
  cache.Truncate(390);
  ASSERT_EQ(cache.tokens(), 390);
  EXPECT_EQ(InPieces(*model, std::span(ids).subspan(390), 10, cache), expected);
  cache.Truncate(200);
  ASSERT_EQ(cache.tokens(), 0);
  EXPECT_EQ(cache.bytes(), 0u);
  EXPECT_EQ(InPieces(*model, ids, 10, cache), expected);
}

TEST(KvCache, TheRecentFormFollowsTheTextAndMakesItBetter) {
  const auto model = TinyWithRecent(MakeBackend("cpu", false), 8),
             narrow = TinyWithRecent(MakeBackend("cpu", false), 0),
             exact = TinyWithWindows(MakeBackend("cpu", false));
  const std::vector<int32_t> ids = Text(700);
  KvCache whole = model->MakeCache(), rough = narrow->MakeCache(), best = exact->MakeCache();
  const auto expected = InPieces(*model, ids, ids.size(), whole);
  const auto right = InPieces(*exact, ids, ids.size(), best);
  const auto without = InPieces(*narrow, ids, ids.size(), rough);
  EXPECT_LT(RelativeError(expected, right), 0.7 * RelativeError(without, right));
  const KvGroups& groups = model->kv_groups();
  for (const size_t piece : {1, 50, 64, 300}) {
    KvCache cache = model->MakeCache();
    EXPECT_EQ(InPieces(*model, ids, piece, cache), expected) << piece;
    if (piece > 1) continue;
    for (int64_t g = 0; g < groups.count(); ++g) {
      for (int64_t row = 0; row < 11 && groups.recent(g); ++row) {
        const bool held = cache.held()[static_cast<size_t>(row)][static_cast<size_t>(g)] != nullptr;
        EXPECT_EQ(held, row == 0 || row >= 9) << row;
      }
    }
  }
}

// A page of the recent form that is gone has the meaning of the narrow one.
TEST(KvCache, TruncatingMakesTheRecentFormFromTheNarrowOne) {
  const auto backend = MakeBackend("cpu", false);
  KvSpec spec = {.kv_heads = 2,
                 .head_dim = 32,
                 .k = {.bits = 4, .symmetric = false},
                 .v = {.bits = 3, .group = 16}};
  spec.recent_bits = 8;
  KvCache cache(spec, 1, *backend);
  cache.Reserve(400);
  Rng rng(3);
  const SequenceSlice all = cache.Slice(0, 400);
  const std::vector<float> center(64);
  for (int64_t t = 0; t < 400; ++t) {
    std::vector<float> q(64), k(64), v(64);
    for (float& x : k) x = static_cast<float>(rng.Normal());
    for (float& x : v) x = static_cast<float>(rng.Normal());
    const auto raw = [](std::vector<float>& x) {
      return reinterpret_cast<Intermediate*>(x.data());
    };
    SequenceSlice one = all;
    one.tokens = 1, one.position = t;
    backend->RopeAndAppend(raw(q), raw(k), raw(v), {.heads = 2, .scale = 1},
                           {nullptr, nullptr, 1024, 0}, spec, {&one, 1});
  }
  cache.Advance(400);
  cache.Reserve(100);  // gives pages 1 to 4 back
  ASSERT_EQ(cache.held()[2][1], nullptr);
  cache.Truncate(200);
  ASSERT_EQ(cache.tokens(), 200);
  ASSERT_EQ(cache.held()[1][1], nullptr);
  const KvSpec recent = spec.Recent();
  const SequenceSlice next = cache.Slice(0, 1);
  for (const int64_t page : {2, 3}) {
    for (int64_t head = 0; head < 2; ++head) {
      const std::byte* a = next.page(page * kPageTokens) + head * spec.block_bytes();
      const std::byte* b = next.recent_page(page * kPageTokens) + head * recent.block_bytes();
      const auto row = [](const std::byte* codes, const std::byte* params, const FormatSpec& format,
                          int64_t token) {
        const int64_t bytes = PackedBytes(32, format.bits), groups = format.groups(32);
        std::vector<float> x(32);
        DequantizeKv(reinterpret_cast<const uint8_t*>(codes) + token * bytes,
                     reinterpret_cast<const uint16_t*>(params) + token * 2 * groups, format, x);
        return x;
      };
      for (int64_t t = 0; t < (page == 2 ? kPageTokens : 8); ++t) {
        EXPECT_EQ(row(a, a + spec.k_params(), spec.k, t),
                  row(b, b + recent.k_params(), recent.k, t));
        EXPECT_EQ(row(a + spec.v_codes(), a + spec.v_params(), spec.v, t),
                  row(b + recent.v_codes(), b + recent.v_params(), recent.v, t));
      }
    }
  }
}

TEST(KvCache, ATruncatedTextGoesOnFromTheNarrowForm) {
  const auto model = TinyWithRecent(MakeBackend("cpu", false), 8);
  const std::vector<int32_t> ids = Text(400);
  KvCache fresh = model->MakeCache(), cache = model->MakeCache();
  const auto expected = InPieces(*model, ids, 400, fresh);
  InPieces(*model, ids, 10, cache);
  cache.Truncate(390);
  EXPECT_EQ(InPieces(*model, std::span(ids).subspan(390), 10, cache), expected)
      << "nothing was gone";
}

// A page that was given back is not there: whoever reads it is stopped.
TEST(KvCache, GpusReadNoPageOutsideOfWindows) {
  if (!GpuOrNull()) GTEST_SKIP() << "needs a GPU";
  const std::vector<int32_t> ids = Text(700);
  for (const bool recent : {false, true}) {
    const auto make = [&](std::unique_ptr<Backend> backend) {
      return recent ? TinyWithRecent(std::move(backend), 8) : TinyWithWindows(std::move(backend));
    };
    const auto model = make(GpuOrNull()), other = make(MakeBackend("cpu", false));
    KvCache whole = other->MakeCache();
    const auto expected = InPieces(*other, ids, ids.size(), whole);
    // Codes of three bits turn over where kernels round otherwise.
    const double max = GpuError() * (recent ? 4 : 1);
    for (const size_t piece : {1, 5, 64, 300}) {
      KvCache cache = model->MakeCache();
      EXPECT_LT(RelativeError(InPieces(*model, ids, piece, cache), expected), max) << piece;
    }
  }
}

}  // namespace
}  // namespace nibble
