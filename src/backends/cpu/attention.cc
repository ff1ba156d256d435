// SPDX-License-Identifier: Apache-2.0
// Blocked attention with an online softmax (Milakov and Gimelshein 2018; Dao et al.,
// FlashAttention, 2022) over the quantized cache, one algorithm for prefill and decode.
//
// A row is one (token, query head). An item is up to kBlockRows rows of one sequence and one kv
// head, so a decoded page of K and V serves many rows. Pages come in ascending order; per page each
// row does S = Q K^T (ascending d), m' = max(m, S), P = 2^(S - m'), O = O 2^(m - m') + P V
// (ascending key). Q holds scale * log2(e).
//
// A row's bits depend on nothing but its own keys: masked scores lie below the value m starts from,
// so a page, or a part of one, that a row does not see has P = 0 and leaves m, l and O as they
// were. Therefore skipping it is free to depend on the rows that share the item.
//
// With AMX and a quantized cache the same algorithm runs on matrix tiles (attention_tiles.h).
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "backends/cpu/attention_tiles.h"
#include "backends/cpu/kv_page.h"
#include "backends/cpu/ops.h"
#include "base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attention.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "backends/cpu/gemm_tile.inl.h"
#include "backends/cpu/kv_decode.inl.h"

#ifndef NIBBLE_BACKENDS_CPU_ATTENTION_TYPES_
#define NIBBLE_BACKENDS_CPU_ATTENTION_TYPES_
namespace nibble::cpu {
namespace {

constexpr int64_t kBlockRows = kTileAttentionRows;
// Row strides in odd numbers of cache lines, so that the rows of a tile fall into different sets.
constexpr int64_t kStrideQ = kMaxHeadDim + 16;
constexpr int64_t kStrideS = kPageTokens + 16;
constexpr int64_t kMaxLanes = 16;
constexpr float kMasked = -1e30f;
constexpr float kStart = -1e29f;  // m before the first key: above kMasked, below any score

struct AttentionWorkspace {
  alignas(64) float q[kBlockRows * kStrideQ];
  alignas(64) float o[kBlockRows * kMaxHeadDim];  // row stride: head_dim rounded up to kTileCols
  alignas(64) float s[kBlockRows * kStrideS];     // S, then P
  alignas(64) float l[kBlockRows * kMaxLanes];    // sum of P, one partial sum per lane
  float m[kBlockRows];
  alignas(64) float k[kMaxHeadDim * kPageTokens];  // [head_dim][64]
  alignas(64) float v[kPageTokens * kMaxHeadDim];  // [64][row stride of o]
  KvScratch scratch;
};

struct TileWorkspace {
  AttentionTiles tiles;
  KvScratch keys, values;
  int32_t first[kBlockRows], last[kBlockRows];
};

struct AttentionCall {
  const float* q;
  const AttentionSpec& attention;
  const KvSpec& kv;
  float* out;
  int64_t group;  // query heads per kv head
};

// Keys [first, last) of a page, 0..64.
struct KeyRange {
  int64_t first, last;
};

// Rows [first, first + rows) of a slice's [tokens, group] rows for one kv head.
struct AttentionItem {
  const AttentionCall* call;
  const SequenceSlice* slice;
  int64_t kv_head, first, rows;

  int64_t position(int64_t row) const { return slice->position + (first + row) / call->group; }
  int64_t end() const { return position(rows - 1) + 1; }  // no row sees a key from here on
  // Of a row's vector in q and out.
  int64_t offset(int64_t row) const {
    const int64_t token = slice->first_row + (first + row) / call->group;
    const int64_t head = kv_head * call->group + (first + row) % call->group;
    return (token * call->attention.heads + head) * call->kv.head_dim;
  }
  int64_t FirstKey(int64_t row) const {
    const int64_t window = call->attention.sliding_window;
    return window == 0 ? 0 : std::max<int64_t>(0, position(row) - window + 1);
  }
  // What rows [begin, end) together see of the page that starts at key `start`.
  KeyRange Visible(int64_t begin, int64_t end, int64_t start) const {
    return {std::clamp<int64_t>(FirstKey(begin) - start, 0, kPageTokens),
            std::clamp<int64_t>(position(end - 1) + 1 - start, 0, kPageTokens)};
  }
};

}  // namespace
}  // namespace nibble::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kVectors = kPageTokens / kLanes;

// 2^x for x <= 0, exactly 1 at 0 and exactly 0 below -126. x = n + f with |f| <= 1/2; the
// polynomial is the best one of degree 5 with 2^0 = 1, relative error 1.5e-7 with its rounding.
HWY_INLINE VF Exp2(VF x) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const VF magic = hn::Set(d, 0x1.8p23f);  // adding it rounds to an integer, kept in the low bits
  const VF shifted = hn::Add(x, magic);
  const VF f = hn::Sub(x, hn::Sub(shifted, magic));
  VF p = hn::Set(d, 0x1.5bda40p-10f);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.3ce8acp-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b6d8p-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9c2p-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const VF power = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -126.0f)), power);
}

void ScaleRow(VF factor, float* x, int64_t count) {
  const DF d;
  for (int64_t i = 0; i < count; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, x + i), factor), d, x + i);
  }
}

// One row's scores of one page to P; m, l and O follow a new maximum.
void SoftmaxRow(KeyRange keys, int64_t width, int64_t row, AttentionWorkspace& work) {
  const DF d;
  float* s = work.s + row * kStrideS;
  float* l = work.l + row * kMaxLanes;
  VF x[kVectors];
  VF max = hn::Set(d, work.m[row]);
  const bool whole = keys.first == 0 && keys.last == kPageTokens;
  const VF first = hn::Set(d, static_cast<float>(keys.first));
  const VF last = hn::Set(d, static_cast<float>(keys.last));
#pragma GCC unroll 8
  for (int64_t i = 0; i < kVectors; ++i) {
    x[i] = hn::Load(d, s + i * kLanes);
    if (!whole) {
      const VF key = hn::Iota(d, static_cast<float>(i * kLanes));
      x[i] =
          hn::IfThenElse(hn::And(hn::Ge(key, first), hn::Lt(key, last)), x[i], hn::Set(d, kMasked));
    }
    max = hn::Max(max, x[i]);
  }
  max = hn::MaxOfLanes(d, max);
  const float new_max = hn::GetLane(max);
  if (new_max > work.m[row]) {
    const VF factor = Exp2(hn::Sub(hn::Set(d, work.m[row]), max));
    ScaleRow(factor, l, kLanes);
    ScaleRow(factor, work.o + row * width, width);
    work.m[row] = new_max;
  }
  VF sum = hn::Load(d, l);
#pragma GCC unroll 8
  for (int64_t i = 0; i < kVectors; ++i) {
    const VF p = Exp2(hn::Sub(x[i], max));
    sum = hn::Add(sum, p);
    hn::Store(p, d, s + i * kLanes);
  }
  hn::Store(sum, d, l);
}

void LoadRow(const float* q, float factor, int64_t head_dim, float* out) {
  const hn::FixedTag<float, 8> d;
  for (int64_t i = 0; i < head_dim; i += 8) {
    hn::Store(hn::Mul(hn::LoadU(d, q + i), hn::Set(d, factor)), d, out + i);
  }
}

// out = o / l. Adding 0 turns -0 into 0: the sign of a zero alone may depend on skipped keys.
void StoreRow(const float* o, const float* l, int64_t head_dim, float* out) {
  const DF lanes;
  const hn::FixedTag<float, 8> d;
  const auto sum = hn::Set(d, hn::GetLane(hn::SumOfLanes(lanes, hn::Load(lanes, l))));
  for (int64_t i = 0; i < head_dim; i += 8) {
    hn::StoreU(hn::Add(hn::Div(hn::Load(d, o + i), sum), hn::Zero(d)), d, out + i);
  }
}

// S = Q K^T of one tile of rows, then P, m, l.
void TileScores(const AttentionItem& item, int64_t begin, int64_t end, int64_t start, int64_t width,
                AttentionWorkspace& work) {
  const KeyRange keys = item.Visible(begin, end, start);
  if (keys.first >= keys.last) return;
  const int64_t first = keys.first / kTileCols * kTileCols;
  MultiplyTile<kStrideQ>(end - begin, {.a = work.q + begin * kStrideQ,
                                       .b = work.k + first,
                                       .b_stride = kPageTokens,
                                       .depth = item.call->kv.head_dim,
                                       .c = work.s + begin * kStrideS + first,
                                       .c_stride = kStrideS,
                                       .cols = keys.last - first,
                                       .resume = false});
  for (int64_t r = begin; r < end; ++r) SoftmaxRow(item.Visible(r, r + 1, start), width, r, work);
}

// O += P V of one tile of rows.
void TileValues(const AttentionItem& item, int64_t begin, int64_t end, int64_t start, int64_t width,
                AttentionWorkspace& work) {
  const KeyRange keys = item.Visible(begin, end, start);
  if (keys.first >= keys.last) return;
  MultiplyTile<kStrideS>(end - begin, {.a = work.s + begin * kStrideS + keys.first,
                                       .b = work.v + keys.first * width,
                                       .b_stride = width,
                                       .depth = keys.last - keys.first,
                                       .c = work.o + begin * width,
                                       .c_stride = width,
                                       .cols = width,
                                       .resume = true});
}

void RunItem(const AttentionItem& item, AttentionWorkspace& work) {
  const AttentionCall& call = *item.call;
  const int64_t head_dim = call.kv.head_dim;
  const int64_t width = (head_dim + kTileCols - 1) / kTileCols * kTileCols;
  const float factor = call.attention.scale * std::numbers::log2e_v<float>;
  for (int64_t r = 0; r < item.rows; ++r) {
    LoadRow(call.q + item.offset(r), factor, head_dim, work.q + r * kStrideQ);
  }
  std::fill_n(work.m, item.rows, kStart);
  std::fill_n(work.l, item.rows * kMaxLanes, 0.0f);
  std::fill_n(work.o, item.rows * width, 0.0f);

  const int64_t tiles = (item.rows + kTileRows - 1) / kTileRows;
  const auto tile_begin = [&](int64_t tile) { return item.rows * tile / tiles; };
  for (int64_t page = item.FirstKey(0) / kPageTokens; page * kPageTokens < item.end(); ++page) {
    const int64_t start = page * kPageTokens;
    const int64_t tokens = std::min(kPageTokens, item.end() - start);
    const std::byte* block = item.slice->pages[page] + item.kv_head * call.kv.block_bytes();
    // Scores of all tiles first: K and V together would not stay in the first-level cache.
    DecodeTransposed(KeysOf(call.kv, block), tokens, work.scratch, work.k);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      TileScores(item, tile_begin(tile), tile_begin(tile + 1), start, width, work);
    }
    DecodeRows(ValuesOf(call.kv, block), tokens, width, work.scratch, work.v);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      TileValues(item, tile_begin(tile), tile_begin(tile + 1), start, width, work);
    }
  }
  for (int64_t r = 0; r < item.rows; ++r) {
    StoreRow(work.o + r * width, work.l + r * kMaxLanes, head_dim, call.out + item.offset(r));
  }
}

// Keys of a page as the tiles want them: dwords of 4- or 8-bit codes, keys in lanes.
void LoadKeys(const KvPart& part, int64_t tokens, KvScratch& scratch) {
  DecodeParams(part, tokens, scratch);
  const bool nibbles = part.format->bits == 4;
  const auto* codes =
      nibbles ? part.codes : reinterpret_cast<const std::byte*>(CodeBytes(part, tokens, scratch));
  TransposeDwords(codes, static_cast<size_t>(nibbles ? part.row_bytes : part.head_dim), tokens,
                  part.head_dim / (nibbles ? 8 : 4), scratch.dwords);
}

void RunItemOnTiles(const AttentionItem& item, TileWorkspace& work) {
  const AttentionCall& call = *item.call;
  AttentionTiles& tiles = work.tiles;
  tiles.rows = item.rows;
  tiles.head_dim = call.kv.head_dim;
  const float factor = call.attention.scale * std::numbers::log2e_v<float>;
  for (int64_t r = 0; r < item.rows; ++r) {
    amx_attention_load(call.q + item.offset(r), factor, r, tiles);
  }
  for (int64_t page = item.FirstKey(0) / kPageTokens; page * kPageTokens < item.end(); ++page) {
    const int64_t start = page * kPageTokens;
    const int64_t tokens = std::min(kPageTokens, item.end() - start);
    const std::byte* block = item.slice->pages[page] + item.kv_head * call.kv.block_bytes();
    const KvPart k = KeysOf(call.kv, block), v = ValuesOf(call.kv, block);
    for (int64_t r = 0; r < item.rows; ++r) {
      const KeyRange keys = item.Visible(r, r + 1, start);
      work.first[r] = static_cast<int32_t>(keys.first);
      work.last[r] = static_cast<int32_t>(keys.last);
    }
    LoadKeys(k, tokens, work.keys);
    const bool nibbles = v.format->bits == 4;
    const uint8_t* v_codes =
        nibbles ? reinterpret_cast<const uint8_t*>(v.codes) : CodeBytes(v, tokens, work.values);
    DecodeParams(v, tokens, work.values);
    amx_attention_page({.k_dwords = work.keys.dwords,
                        .v_codes = v_codes,
                        .k_bits = k.format->bits == 4 ? 4 : 8,
                        .v_bits = nibbles ? 4 : 8,
                        .k_scales = work.keys.scales,
                        .k_zeros = work.keys.zeros,
                        .v_scales = work.values.scales,
                        .v_zeros = work.values.zeros,
                        .tokens = tokens,
                        .first = work.first,
                        .last = work.last},
                       tiles);
  }
  for (int64_t r = 0; r < item.rows; ++r) amx_attention_store(tiles, r, call.out + item.offset(r));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {
HWY_EXPORT(RunItem);
HWY_EXPORT(RunItemOnTiles);

namespace {

// Matrix tiles take caches whose codes share a scale per head.
bool FitsTiles(const KvSpec& kv) {
  const auto fits = [&](const FormatSpec& f) {
    return f.quantized() && f.groups(kv.head_dim) == 1;
  };
  return fits(kv.k) && fits(kv.v) && kv.head_dim % 32 == 0 && kv.head_dim <= kTileAttentionHeadDim;
}

}  // namespace

void Attention(const float* q, const AttentionSpec& attention, const KvSpec& kv,
               std::span<const SequenceSlice> batch, bool amx, float* out) {
  NIBBLE_CHECK(kv.head_dim % 8 == 0 && kv.head_dim <= kMaxHeadDim, "head_dim {}", kv.head_dim);
  NIBBLE_CHECK(attention.heads % kv.kv_heads == 0, "{} / {} heads", attention.heads, kv.kv_heads);
  const AttentionCall call{
      .q = q, .attention = attention, .kv = kv, .out = out, .group = attention.heads / kv.kv_heads};
  static thread_local std::vector<AttentionItem> thread_items;
  std::vector<AttentionItem>& items = thread_items;
  items.clear();
  for (const SequenceSlice& slice : batch) {
    const int64_t rows = slice.tokens * call.group;
    for (int64_t first = 0; first < rows; first += kBlockRows) {
      for (int64_t head = 0; head < kv.kv_heads; ++head) {
        items.push_back({&call, &slice, head, first, std::min(kBlockRows, rows - first)});
      }
    }
  }
  // The longest first, so that no thread is left alone with one at the end.
  std::sort(items.begin(), items.end(),
            [](const AttentionItem& a, const AttentionItem& b) { return a.end() > b.end(); });
  if (amx && FitsTiles(kv)) {
    return ParallelFor(items.size(), [&](size_t i) {
      static thread_local const auto work = hwy::MakeUniqueAligned<TileWorkspace>();
      HWY_DYNAMIC_DISPATCH(RunItemOnTiles)(items[i], *work);
    });
  }
  ParallelFor(items.size(), [&](size_t i) {
    static thread_local const auto work = hwy::MakeUniqueAligned<AttentionWorkspace>();
    HWY_DYNAMIC_DISPATCH(RunItem)(items[i], *work);
  });
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
