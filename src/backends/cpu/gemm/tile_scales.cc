// SPDX-License-Identifier: Apache-2.0
// Sums on their way to the outputs: scales of groups and tokens, bias, what is there already.
#include <type_traits>

#include "backends/cpu/common/dispatch.h"
#include "backends/cpu/gemm/int_kernels.h"
#include "backends/cpu/gemm/tile_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/gemm/tile_scales.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "backends/cpu/common/lanes.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

using DHalf = hn::Rebind<hwy::float16_t, DF>;

// out[j] (+)= value[j] for j < count
HWY_INLINE void StoreLanes(VF value, int64_t count, bool accumulate, float* out) {
  const DF d;
  if (count >= kLanes) {
    hn::StoreU(accumulate ? hn::Add(hn::LoadU(d, out), value) : value, d, out);
  } else if (count > 0) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(count));
    if (accumulate) value = hn::Add(hn::MaskedLoad(mask, d, out), value);
    hn::BlendedStore(value, mask, d, out);
  }
}

enum class Zeros { kSymmetric, kAsymmetric, kPlanes };

// Constants of a group of weights, and what a token's codes add to them.
template <bool kExact>
struct GroupTerms {
  VF scale, column_sum;
  std::conditional_t<kExact, VF, VI> offset;
  int64_t act;  // where scales of activations begin
};

// kExact: all integers of a group are below 2^24, so floats do the same to them (exact_sums).
template <Zeros kZeros, bool kScaleLast, bool kExact>
class ScaleTile {
 public:
  ScaleTile(const TileSums& s, const IntPanels& w, const TokenTerms& acts, float* partial,
            const TileOutput& out)
      : s_(s),
        w_(w),
        acts_(acts),
        groups_(w.groups),
        weight_groups_(w.weight_groups()),
        half_scales_(w.half_scales.empty() ? nullptr : w.half_scales.data()),
        offsets_(w.offsets.empty() ? nullptr : w.offsets.data()),
        partial_(partial),
        out_(out) {}

  HWY_INLINE void Run() const {
    const int64_t last = s_.group + s_.groups;
    for (int64_t n = 0; n < kTileOutputs; n += kLanes) {
      int64_t g = s_.group;
      for (; g + 4 <= last; g += 4) Groups<4>(g, n);
      for (; g + 2 <= last; g += 2) Groups<2>(g, n);
      if (g < last) Groups<1>(g, n);
    }
  }

 private:
  using T = GroupTerms<kExact>;
  static constexpr int64_t kPlanes = kZeros == Zeros::kPlanes ? 2 : 1;
  static constexpr bool kZeroOffsets = kZeros == Zeros::kAsymmetric;

  // One vector of outputs of all tokens; the terms of kCount groups stay in registers.
  template <int kCount>
  HWY_INLINE void Groups(int64_t g, int64_t n) const {
    const DF df;
    T terms[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) terms[i] = Terms(g + i, n);
    for (int64_t r = 0; r < s_.rows; r += kPlanes) {
      float* const partial = partial_ + r * kTileOutputs + n;
      const int64_t token = (s_.row + r) / kPlanes;
      VF sum = g == 0 ? hn::Zero(df) : hn::LoadU(df, partial);
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) sum = Add(sum, r, token, g + i, n, terms[i]);
      if (g + kCount < groups_) {
        hn::StoreU(sum, df, partial);
      } else {
        Finish(sum, token, n);
      }
    }
  }

  // The index of what `count` groups share; most often each has its own, and divisions take long.
  static HWY_INLINE int64_t Shared(int64_t g, int64_t count) {
    return count == 1 ? g : g / count;
  }

  HWY_INLINE T Terms(int64_t g, int64_t n) const {
    const DF df;
    const int64_t panel = s_.panel + n / kPanel, j = n % kPanel;
    const int64_t at = (panel * weight_groups_ + Shared(g, w_.per_weight_group)) * kPanel + j;
    const DI di;
    const auto* halves = reinterpret_cast<const hwy::float16_t*>(half_scales_);
    const VI offset = offsets_ == nullptr ? hn::Set(di, static_cast<int32_t>(w_.offset()))
                                          : hn::PromoteTo(di, hn::LoadU(DB(), offsets_ + at));
    T terms;
    terms.act = Shared(g, w_.per_act_group) * acts_.tokens;
    terms.scale = halves == nullptr ? hn::LoadU(df, w_.scales.data() + at)
                                    : hn::PromoteTo(df, hn::LoadU(DHalf(), halves + at));
    if constexpr (kExact) {
      terms.offset = hn::ConvertTo(df, offset);
    } else {
      terms.offset = offset;
    }
    if constexpr (kZeroOffsets && !kScaleLast) {
      const float* sums = w_.column_sums.data() + (panel * w_.groups + g) * kPanel + j;
      terms.column_sum = hn::LoadU(df, sums);
    }
    return terms;
  }

  // float(acc - offset * Q)
  HWY_INLINE VF Centred(int64_t r, int64_t g, int64_t n, const T& terms) const {
    const DF df;
    const DI di;
    const VI acc = hn::LoadU(di, s_.acc + ((g - s_.group) * s_.rows + r) * kTileOutputs + n);
    const int64_t at = g * acts_.rows + s_.row + r;
    if constexpr (kExact) {
      return hn::NegMulAdd(terms.offset, hn::Set(df, acts_.exact_sums[at]), hn::ConvertTo(df, acc));
    } else {
      return hn::ConvertTo(df,
                           hn::Sub(acc, hn::Mul(terms.offset, hn::Set(di, acts_.code_sums[at]))));
    }
  }

  // A group's share of one vector of a token's outputs.
  HWY_INLINE VF Add(VF sum, int64_t r, int64_t token, int64_t g, int64_t n, const T& terms) const {
    const DF df;
    VF t = Centred(r, g, n, terms);
    if constexpr (kPlanes == 2) {
      t = hn::Add(hn::Mul(hn::Set(df, 256.0f), t), Centred(r + 1, g, n, terms));
    }
    if constexpr (kScaleLast) return hn::MulAdd(terms.scale, t, sum);
    const int64_t act = terms.act + token;
    if constexpr (kZeroOffsets) {
      t = hn::Add(t, hn::Mul(hn::Set(df, acts_.zero_offsets[act]), terms.column_sum));
    }
    const VF scale = hn::Mul(hn::Set(df, acts_.scales[act]), terms.scale);
    return groups_ == 1 ? hn::Mul(scale, t) : hn::MulAdd(scale, t, sum);
  }

  HWY_INLINE void Finish(VF sum, int64_t token, int64_t n) const {
    const DF df;
    const int64_t output = s_.panel * kPanel + n;
    if constexpr (kScaleLast) {
      if constexpr (kZeroOffsets) {
        const VF column_sum = hn::LoadU(df, w_.column_sums.data() + output);
        sum = hn::MulAdd(hn::Set(df, acts_.zero_offsets[token]), column_sum, sum);
      }
      sum = hn::Mul(hn::Set(df, acts_.scales[token]), sum);
    }
    if (!w_.bias.empty()) sum = hn::Add(sum, hn::LoadU(df, w_.bias.data() + output));
    float* y = out_.y + token * out_.stride + output;
    // Whole lines only.
    if (kLanes == 16 && out_.stream && w_.rows - output >= kLanes) {
      hn::Stream(sum, df, y);
    } else {
      StoreLanes(sum, w_.rows - output, out_.accumulate, y);
    }
  }

  const TileSums s_;  // a copy: stores cannot change it
  const IntPanels& w_;
  const TokenTerms acts_;
  const int64_t groups_, weight_groups_;
  const uint16_t* const half_scales_;  // or null
  const uint8_t* const offsets_;       // or null
  float* const partial_;
  const TileOutput& out_;
};

template <Zeros kZeros>
void ScaleAs(const TileSums& s, const IntPanels& w, const TokenTerms& acts, float* partial,
             const TileOutput& out) {
  if (w.scale_last() && acts.exact_sums != nullptr) {
    ScaleTile<kZeros, true, true>(s, w, acts, partial, out).Run();
  } else if (w.scale_last()) {
    ScaleTile<kZeros, true, false>(s, w, acts, partial, out).Run();
  } else if (acts.exact_sums != nullptr) {
    ScaleTile<kZeros, false, true>(s, w, acts, partial, out).Run();
  } else {
    ScaleTile<kZeros, false, false>(s, w, acts, partial, out).Run();
  }
}

void Scale(const TileSums& s, const IntPanels& w, const TokenTerms& acts, float* partial,
           const TileOutput& out) {
  if (w.planes()) {
    ScaleAs<Zeros::kPlanes>(s, w, acts, partial, out);
  } else if (w.activations.symmetric) {
    ScaleAs<Zeros::kSymmetric>(s, w, acts, partial, out);
  } else {
    ScaleAs<Zeros::kAsymmetric>(s, w, acts, partial, out);
  }
}

void Store(const float* y, int64_t rows, int64_t count, const float* bias, bool accumulate,
           float* out, int64_t out_stride) {
  const DF d;
  for (int64_t j = 0; j < count; j += kLanes) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(count - j));
    const auto add = bias != nullptr ? hn::MaskedLoad(mask, d, bias + j) : hn::Zero(d);
    for (int64_t r = 0; r < rows; ++r) {
      auto value = hn::LoadU(d, y + r * kTileOutputs + j);
      if (bias != nullptr) value = hn::Add(value, add);
      StoreLanes(value, count - j, accumulate, out + r * out_stride + j);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {
HWY_EXPORT(Scale);
HWY_EXPORT(Store);

void ApplyScales(Isa isa, const TileSums& sums, const IntPanels& weights, const TokenTerms& acts,
                 float* partial, const TileOutput& out) {
  NIBBLE_DISPATCH(isa, Scale)(sums, weights, acts, partial, out);
}

void StoreTile(Isa isa, const float* y, int64_t rows, int64_t count, const float* bias,
               bool accumulate, float* out, int64_t out_stride) {
  NIBBLE_DISPATCH(isa, Store)(y, rows, count, bias, accumulate, out, out_stride);
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
