// SPDX-License-Identifier: Apache-2.0
// Attention of an item over one span of keys in fp32 vectors, for any cache format.
//
// Pages come in ascending order; per page each row does S = Q K^T (ascending d), m' = max(m, S),
// P = 2^(S - m'), O = O 2^(m - m') + P V (ascending key). Q holds scale * log2(e).
#if defined(NIBBLE_BACKENDS_CPU_ATTENTION_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_BACKENDS_CPU_ATTENTION_VECTOR_INL_H_
#undef NIBBLE_BACKENDS_CPU_ATTENTION_VECTOR_INL_H_
#else
#define NIBBLE_BACKENDS_CPU_ATTENTION_VECTOR_INL_H_
#endif

#include "backends/cpu/attention/attention_item.h"
#include "backends/cpu/attention/kv_decode.inl.h"
#include "backends/cpu/gemm/gemm_tile.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

// Row strides in odd numbers of cache lines, so that the rows of a tile fall into different sets.
constexpr int64_t kStrideQ = kMaxHeadDim + 16;
constexpr int64_t kStrideS = kPageTokens + 16;
constexpr float kMasked = -1e30f;
constexpr int64_t kVectors = kPageTokens / kLanes;

struct VectorWorkspace {
  alignas(64) float q[kBlockRows * kStrideQ];
  alignas(64) float o[kBlockRows * kMaxHeadDim];  // row stride: head_dim rounded up to kTileCols
  alignas(64) float s[kBlockRows * kStrideS];     // S, then P
  alignas(64) float l[kBlockRows * kLanes];       // sum of P, one partial sum per lane
  float m[kBlockRows];
  alignas(64) float k[kMaxHeadDim * kPageTokens];  // [head_dim][64]
  alignas(64) float v[kPageTokens * kMaxHeadDim];  // [64][row stride of o]
  KvScratch scratch;
};

// 2^x for x <= 0, exactly 1 at 0 and exactly 0 below -100: no sum that has a 1 feels it, and what
// becomes subnormal takes a slow path. x = n + f with |f| <= 1/2; the
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
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -100.0f)), power);
}

void ScaleRow(VF factor, float* x, int64_t count) {
  const DF d;
  for (int64_t i = 0; i < count; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, x + i), factor), d, x + i);
  }
}

// cap * tanh(s / cap), whose magnitude is (1 - e) / (1 + e) with e = e^(-2 |s / cap|). Scores of
// keys that a row does not see may be anything.
void CapRow(float cap, float* s) {
  const DF d;
  const VF factor = hn::Set(d, -2 * std::numbers::log2e_v<float> / cap), one = hn::Set(d, 1.0f);
  for (int64_t i = 0; i < kPageTokens; i += kLanes) {
    const VF score = hn::Load(d, s + i);
    const VF e = Exp2(hn::Mul(hn::Abs(score), factor));
    const VF tanh = hn::Div(hn::Sub(one, e), hn::Add(one, e));
    hn::Store(hn::CopySign(hn::Mul(tanh, hn::Set(d, cap)), score), d, s + i);
  }
}

// One row's scores of one page to P; m, l and O follow a new maximum.
void SoftmaxRow(KeyRange keys, int64_t width, int64_t row, VectorWorkspace& work) {
  const DF d;
  float* s = work.s + row * kStrideS;
  float* l = work.l + row * kLanes;
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

// S = Q K^T of one tile of rows, then P, m, l.
void TileScores(const AttentionItem& item, int64_t begin, int64_t end, PageForm form, int64_t width,
                VectorWorkspace& work) {
  const KeyRange keys = item.Visible(begin, end, form);
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
  const float cap = item.call->attention.softcap * std::numbers::log2e_v<float>;
  for (int64_t r = begin; r < end; ++r) {
    if (cap > 0) CapRow(cap, work.s + r * kStrideS);
    SoftmaxRow(item.Visible(r, r + 1, form), width, r, work);
  }
}

// O += P V of one tile of rows.
void TileValues(const AttentionItem& item, int64_t begin, int64_t end, PageForm form, int64_t width,
                VectorWorkspace& work) {
  const KeyRange keys = item.Visible(begin, end, form);
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

void VectorSpan(const AttentionItem& item, int64_t span, VectorWorkspace& work, float* results) {
  const AttentionCall& call = *item.call;
  const int64_t head_dim = call.kv.head_dim;
  const int64_t width = (head_dim + kTileCols - 1) / kTileCols * kTileCols;
  const float factor = call.attention.scale * std::numbers::log2e_v<float>;
  for (int64_t r = 0; r < item.rows; ++r) {
    LoadRow(call.q + item.offset(r), factor, head_dim, work.q + r * kStrideQ);
  }
  std::fill_n(work.m, item.rows, kFirstMaximum);
  std::fill_n(work.l, item.rows * kLanes, 0.0f);
  std::fill_n(work.o, item.rows * width, 0.0f);

  const int64_t tiles = (item.rows + kTileRows - 1) / kTileRows;
  const auto tile_begin = [&](int64_t tile) { return item.rows * tile / tiles; };
  item.ForPages(span, [&](PageForm form) {
    const int64_t tokens = std::min(kPageTokens, item.end() - form.start());
    const KvSpec& kv = item.Cache(form);
    const std::byte* block = item.Block(form);
    // Scores of all tiles first: K and V together would not stay in the first-level cache.
    DecodeTransposed(KeysOf(kv, block), tokens, work.scratch, work.k);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      TileScores(item, tile_begin(tile), tile_begin(tile + 1), form, width, work);
    }
    DecodeRows(ValuesOf(kv, block), tokens, width, work.scratch, work.v);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      TileValues(item, tile_begin(tile), tile_begin(tile + 1), form, width, work);
    }
  });
  const DF d;
  for (int64_t r = 0; r < item.rows; ++r, results += kPartialStride) {
    std::copy_n(work.o + r * width, head_dim, results);
    results[kPartialSum] = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, work.l + r * kLanes)));
    results[kPartialMax] = work.m[r];
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
