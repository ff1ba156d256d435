// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "backends/cpu/acts/transform_plan.h"
#include "backends/cpu/attention/attention.h"
#include "backends/cpu/common/dispatch.h"
#include "backends/cpu/common/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attention/rope_append.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "backends/cpu/acts/quantize.inl.h"
#include "backends/cpu/acts/transform.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

// x [heads, head_dim] in place; cos and sin hold `half` angles for the pairs (i, i + half), the
// dimensions from 2 * half on stay. Not fused, so that every instruction set gives the same bits.
void RotatePairs(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin,
                 int64_t half) {
  const DF d;
  for (float* end = x + heads * head_dim; x < end; x += head_dim) {
    float* upper = x + half;
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const VF a = hn::LoadU(d, x + i), b = hn::LoadU(d, upper + i);
      const VF c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
      hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, x + i);
      hn::StoreU(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), d, upper + i);
    }
    for (; i < half; ++i) {
      const float a = x[i], b = upper[i];
      x[i] = a * cos[i] - b * sin[i];
      upper[i] = b * cos[i] + a * sin[i];
    }
  }
}

// RMS norm of each head, in place. Sums are in fp64 and thus the same in any order.
void NormHeads(float* x, int64_t heads, int64_t head_dim, const float* weight, float eps) {
  if (weight == nullptr) return;
  for (float* end = x + heads * head_dim; x < end; x += head_dim) {
    double squares = 0;
    for (int64_t i = 0; i < head_dim; ++i) squares += double{x[i]} * x[i];
    const double mean = squares / static_cast<double>(head_dim);
    const auto factor = static_cast<float>(1 / std::sqrt(mean + double{eps}));
    for (int64_t i = 0; i < head_dim; ++i) x[i] = x[i] * factor * weight[i];
  }
}

// One token of one head as QuantizeKv writes it.
void StoreCacheRow(const float* x, int64_t head_dim, const FormatSpec& format, std::byte* row,
                   std::byte* params_row) {
  auto* packed = reinterpret_cast<uint8_t*>(row);
  auto* params = reinterpret_cast<uint16_t*>(params_row);
  if (!format.quantized()) {
    return QuantizeKv({x, static_cast<size_t>(head_dim)}, format, packed, params);
  }
  auto* codes = format.bits == 8
                    ? packed
                    : reinterpret_cast<uint8_t*>(ThreadScratch(Scratch::kRow, head_dim));
  const int64_t groups = format.groups(head_dim), length = head_dim / groups;
  for (int64_t g = 0; g < groups; ++g) {
    CacheGroup(x + g * length, length, format, codes + g * length, params + 2 * g);
  }
  if (format.bits == 4 && head_dim % 2 == 0) {
    PackNibbles(codes, head_dim, packed);
  } else if (format.bits != 8) {
    PackCodes(reinterpret_cast<const int8_t*>(codes), head_dim, format.bits, packed);
  }
}

// All heads of one token into their page.
void StoreToken(const float* k, const float* v, const KvSpec& kv, std::byte* page, int64_t slot) {
  const int64_t d = kv.head_dim;
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    std::byte* block = page + h * kv.block_bytes();
    StoreCacheRow(k + h * d, d, kv.k, block + slot * kv.row_bytes(kv.k),
                  block + kv.k_params() + slot * kv.params_per_row(kv.k) * 2);
    StoreCacheRow(v + h * d, d, kv.v, block + kv.v_codes() + slot * kv.row_bytes(kv.v),
                  block + kv.v_params() + slot * kv.params_per_row(kv.v) * 2);
  }
}

void RopeAndAppendToken(float* q, float* k, const float* v, const AttentionSpec& attention,
                        const RopeView& rope, const TransformPlan* rotation, const KvSpec& kv,
                        const KvSpec& recent, const SequenceSlice& slice, int64_t position) {
  const int64_t d = kv.head_dim, heads = attention.heads;
  const float* cos = rope.cos + position * rope.angles;
  const float* sin = rope.sin + position * rope.angles;
  const auto turn = [&](float* x, int64_t count, const float* norm) {
    NormHeads(x, count, d, norm, attention.norm_eps);
    RotatePairs(x, count, d, cos, sin, rope.angles);
    if (rotation != nullptr) TransformGroup(*rotation, x, count);
  };
  turn(q, heads, attention.q_norm);
  if (k == nullptr) return;
  turn(k, kv.kv_heads, attention.k_norm);
  if (const float* center = attention.key_center; center != nullptr) {
    for (int64_t i = 0; i < kv.kv_heads * d; ++i) k[i] -= center[i];
  }
  StoreToken(k, v, kv, slice.page(position), position % kPageTokens);
  if (kv.recent_bits == 0) return;
  StoreToken(k, v, recent, slice.recent_page(position), position % kPageTokens);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {
namespace {
HWY_EXPORT(RopeAndAppendToken);
}  // namespace

void RopeAndAppend(Isa isa, float* q, float* k, const float* v, const AttentionSpec& attention,
                   const RopeView& rope, const KvSpec& kv, std::span<const SequenceSlice> batch) {
  const TransformPlan* rotation = kv.rotation.identity() ? nullptr : &PlanFor(kv.rotation, isa);
  NIBBLE_CHECK(rotation == nullptr || kv.rotation.width() == kv.head_dim, "rotation of {} on {}",
               kv.rotation.width(), kv.head_dim);
  NIBBLE_CHECK(2 * rope.angles <= kv.head_dim, "{} angles, heads of {}", rope.angles, kv.head_dim);
  const int64_t q_width = attention.heads * kv.head_dim, k_width = kv.kv_heads * kv.head_dim;
  const int64_t rotation_cost = rotation == nullptr ? 0 : rotation->row_cost;
  const int64_t cost = (attention.heads + kv.kv_heads) * rotation_cost + 2 * q_width + 10 * k_width;
  const KvSpec recent = kv.Recent();
  int64_t tokens = 0;
  for (const SequenceSlice& slice : batch) {
    NIBBLE_CHECK(slice.position + slice.tokens <= rope.positions, "{} positions", rope.positions);
    tokens += slice.tokens;
  }
  ParallelRows(tokens, cost, 1, [&](int64_t begin, int64_t end) {
    for (const SequenceSlice& slice : batch) {
      for (int64_t t = std::max<int64_t>(begin, 0); t < std::min(end, slice.tokens); ++t) {
        const int64_t row = slice.first_row + t, position = slice.position + t;
        const int64_t k_row = k == nullptr ? 0 : row * k_width;
        NIBBLE_DISPATCH(isa, RopeAndAppendToken)
        (q + row * q_width, k + k_row, v + k_row, attention, rope, rotation, kv, recent, slice,
         position);
      }
      begin -= slice.tokens;  // now counted from the next sequence's first token
      end -= slice.tokens;
    }
  });
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
