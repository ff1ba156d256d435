// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/gemm/tile_ops.h"

#include <algorithm>

#include "backends/cpu/dispatch.h"
#include "backends/cpu/gemm/int_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/gemm/tile_ops.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

void Unpack(const uint8_t* nibbles, int64_t inputs, uint8_t* bytes) {
  const hn::CappedTag<uint8_t, 64> d;
  const auto mask = hn::Set(d, 15);
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < inputs / 8; ++i) {
    for (int64_t j = 0; j < 64; j += lanes) {
      const auto pair = hn::LoadU(d, nibbles + i * 64 + j);
      hn::StoreU(hn::And(pair, mask), d, bytes + i * 128 + j);
      hn::StoreU(hn::And(hn::ShiftRight<4>(pair), mask), d, bytes + i * 128 + 64 + j);
    }
  }
}

// Lines of eight inputs whose outputs keep their steps. Scale and start fill the two pairs of bytes
// of an output; a nibble times the scale is below 256, so pairs are multiplied at once.
void UnpackGroup(const uint8_t* nibbles, int64_t lines, const uint16_t* steps, uint8_t* bytes) {
  const hn::CappedTag<uint8_t, 64> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const hn::Rebind<uint16_t, decltype(d32)> d_steps;
  const auto mask = hn::Set(d, 15);
  const int64_t lanes = hn::Lanes(d);
  for (int64_t j = 0; j < 64; j += lanes) {
    const auto step = hn::PromoteTo(d32, hn::LoadU(d_steps, steps + j / 4));
    const auto low = hn::And(step, hn::Set(d32, 255));
    const auto scale = hn::BitCast(d16, hn::Or(low, hn::ShiftLeft<16>(low)));
    const auto start = hn::BitCast(d, hn::Mul(hn::ShiftRight<8>(step), hn::Set(d32, 0x01010101u)));
    const auto store = [&](hn::Vec<decltype(d)> codes, uint8_t* out) HWY_ATTR {
      const auto product = hn::BitCast(d, hn::Mul(hn::BitCast(d16, codes), scale));
      hn::StoreU(hn::Add(product, start), d, out);
    };
    for (int64_t i = 0; i < lines; ++i) {
      const auto pair = hn::LoadU(d, nibbles + i * 64 + j);
      store(hn::And(pair, mask), bytes + i * 128 + j);
      store(hn::And(hn::ShiftRight<4>(pair), mask), bytes + i * 128 + 64 + j);
    }
  }
}

void UnpackSteps(const uint8_t* nibbles, int64_t first, int64_t inputs, const uint16_t* steps,
                 int64_t step_cols, uint8_t* bytes) {
  while (inputs > 0) {
    const int64_t count = std::min(inputs, step_cols - first % step_cols);
    UnpackGroup(nibbles, count / 8, steps + first / step_cols * kPanel, bytes);
    nibbles += count * 8;
    bytes += count * kPanel;
    first += count;
    inputs -= count;
  }
}

using DF = hn::CappedTag<float, kPanel>;
using VF = hn::Vec<DF>;

// out[j] (+)= value[j] for j < count
HWY_INLINE void StoreLanes(VF value, int64_t count, bool accumulate, float* out) {
  const DF d;
  if (count >= static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(accumulate ? hn::Add(hn::LoadU(d, out), value) : value, d, out);
  } else if (count > 0) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(count));
    if (accumulate) value = hn::Add(hn::MaskedLoad(mask, d, out), value);
    hn::BlendedStore(value, mask, d, out);
  }
}

enum class Law { kSymmetric, kAsymmetric, kPlanes };

template <Law kLaw>
void ScaleRows(const TileSums& s, const IntPanels& w, const Activations& acts,
               const int32_t* code_sums, float* partial, const TileOutput& out) {
  constexpr bool kAsymmetric = kLaw == Law::kAsymmetric;
  constexpr int64_t kPlanes = kLaw == Law::kPlanes ? 2 : 1;
  const DF df;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<int16_t, DF> d16;
  const int64_t lanes = hn::Lanes(df);
  const int64_t act_groups = w.groups / w.per_act_group;
  for (int64_t i = 0; i < s.groups * kTileOutputs; i += lanes) {
    const int64_t g = s.group + i / kTileOutputs, n = i % kTileOutputs;
    const int64_t panel = s.panel + n / kPanel, j = n % kPanel, output = panel * kPanel + j;
    const int64_t constants = (panel * w.weight_groups() + g / w.per_weight_group) * kPanel + j;
    const auto scale = hn::LoadU(df, w.scales.data() + constants);
    const auto offset = hn::PromoteTo(di, hn::LoadU(d16, w.offsets.data() + constants));
    auto column_sum = hn::Zero(df);
    if constexpr (kAsymmetric) {
      column_sum = hn::LoadU(df, w.column_sums.data() + (panel * w.groups + g) * kPanel + j);
    }
    const bool last = g == w.groups - 1, bias = last && !w.bias.empty();
    const auto bias_values = bias ? hn::LoadU(df, w.bias.data() + output) : hn::Zero(df);
    const int32_t* acc = s.acc + (g - s.group) * s.rows * kTileOutputs + n;
    const auto centred = [&](int64_t r) HWY_ATTR {
      const auto code_sum = hn::Set(di, code_sums[(s.row + r) * w.groups + g]);
      return hn::ConvertTo(
          df, hn::Sub(hn::LoadU(di, acc + r * kTileOutputs), hn::Mul(offset, code_sum)));
    };
    for (int64_t r = 0; r < s.rows; r += kPlanes) {
      const int64_t token = (s.row + r) / kPlanes;
      const int64_t act = token * act_groups + g / w.per_act_group;
      auto t = centred(r);
      if constexpr (kPlanes == 2) t = hn::Add(hn::Mul(hn::Set(df, 256.0f), t), centred(r + 1));
      if constexpr (kAsymmetric) {
        t = hn::Add(t, hn::Mul(hn::Set(df, acts.zetas[act]), column_sum));
      }
      t = hn::Mul(hn::Mul(hn::Set(df, acts.scales[act]), scale), t);
      float* sum = partial + r * kTileOutputs + n;
      if (g > 0) t = hn::Add(hn::LoadU(df, sum), t);
      if (!last) {
        hn::StoreU(t, df, sum);
      } else {
        if (bias) t = hn::Add(t, bias_values);
        float* y = out.y + token * out.stride + output;
        // Whole lines only.
        if (lanes == 16 && out.stream && w.rows - output >= lanes) {
          hn::Stream(t, df, y);
        } else {
          StoreLanes(t, w.rows - output, out.accumulate, y);
        }
      }
    }
  }
}

void Scale(const TileSums& s, const IntPanels& w, const Activations& acts, const int32_t* code_sums,
           float* partial, const TileOutput& out) {
  if (w.planes()) {
    ScaleRows<Law::kPlanes>(s, w, acts, code_sums, partial, out);
  } else if (w.activation.symmetric) {
    ScaleRows<Law::kSymmetric>(s, w, acts, code_sums, partial, out);
  } else {
    ScaleRows<Law::kAsymmetric>(s, w, acts, code_sums, partial, out);
  }
}

void Store(const float* y, int64_t rows, int64_t count, const float* bias, bool accumulate,
           float* out, int64_t out_stride) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t j = 0; j < count; j += lanes) {
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
HWY_EXPORT(Unpack);
HWY_EXPORT(UnpackSteps);
HWY_EXPORT(Scale);
HWY_EXPORT(Store);

void UnpackNibbles(Isa isa, const uint8_t* nibbles, int64_t inputs, uint8_t* bytes) {
  NIBBLE_DISPATCH(isa, Unpack)(nibbles, inputs, bytes);
}

void UnpackLevels(Isa isa, const uint8_t* nibbles, int64_t first, int64_t inputs,
                  const uint16_t* steps, int64_t step_cols, uint8_t* bytes) {
  NIBBLE_DISPATCH(isa, UnpackSteps)(nibbles, first, inputs, steps, step_cols, bytes);
}

void ApplyScales(Isa isa, const TileSums& sums, const IntPanels& weights, const Activations& acts,
                 const int32_t* code_sums, float* partial, const TileOutput& out) {
  NIBBLE_DISPATCH(isa, Scale)(sums, weights, acts, code_sums, partial, out);
}

void StoreTile(Isa isa, const float* y, int64_t rows, int64_t count, const float* bias,
               bool accumulate, float* out, int64_t out_stride) {
  NIBBLE_DISPATCH(isa, Store)(y, rows, count, bias, accumulate, out, out_stride);
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
