// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/tile_ops.h"

#include "backends/cpu/int_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/tile_ops.cc"
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

template <bool kAsymmetric>
void ScaleRows(const TileSums& s, const IntPanels& w, const Activations& acts,
               const int32_t* code_sums, float* y) {
  const hn::CappedTag<float, kPanel> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<int16_t, decltype(df)> d16;
  const int64_t lanes = hn::Lanes(df);
  const int64_t act_groups = w.groups / w.per_act_group;
  for (int64_t i = 0; i < s.groups * kTileOutputs; i += lanes) {
    const int64_t g = s.group + i / kTileOutputs, n = i % kTileOutputs;
    const int64_t panel = s.panel + n / kPanel, j = n % kPanel;
    const int64_t constants = (panel * w.weight_groups() + g / w.per_weight_group) * kPanel + j;
    const auto scale = hn::LoadU(df, w.scales.data() + constants);
    const auto offset = hn::PromoteTo(di, hn::LoadU(d16, w.offsets.data() + constants));
    auto column_sum = hn::Zero(df);
    if constexpr (kAsymmetric) {
      column_sum = hn::LoadU(df, w.column_sums.data() + (panel * w.groups + g) * kPanel + j);
    }
    const int32_t* acc = s.acc + (g - s.group) * s.rows * kTileOutputs + n;
    for (int64_t r = 0; r < s.rows; ++r) {
      const int64_t token = s.row + r;
      const int64_t act = token * act_groups + g / w.per_act_group;
      const auto code_sum = hn::Set(di, code_sums[token * w.groups + g]);
      auto t = hn::ConvertTo(
          df, hn::Sub(hn::LoadU(di, acc + r * kTileOutputs), hn::Mul(offset, code_sum)));
      if constexpr (kAsymmetric) {
        t = hn::Add(t, hn::Mul(hn::Set(df, acts.zetas[act]), column_sum));
      }
      t = hn::Mul(hn::Mul(hn::Set(df, acts.scales[act]), scale), t);
      float* out = y + r * kTileOutputs + n;
      hn::StoreU(w.groups == 1 ? t : hn::Add(hn::LoadU(df, out), t), df, out);
    }
  }
}

void Scale(const TileSums& s, const IntPanels& w, const Activations& acts, const int32_t* code_sums,
           float* y) {
  if (w.activation.symmetric) {
    ScaleRows<false>(s, w, acts, code_sums, y);
  } else {
    ScaleRows<true>(s, w, acts, code_sums, y);
  }
}

void Store(const float* y, int64_t rows, int64_t count, const float* bias, bool accumulate,
           float* out, int64_t out_stride) {
  const hn::CappedTag<float, kPanel> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t r = 0; r < rows; ++r, y += kTileOutputs, out += out_stride) {
    int64_t j = 0;
    for (; j + lanes <= count; j += lanes) {
      auto value = hn::LoadU(d, y + j);
      if (bias != nullptr) value = hn::Add(value, hn::LoadU(d, bias + j));
      if (accumulate) value = hn::Add(hn::LoadU(d, out + j), value);
      hn::StoreU(value, d, out + j);
    }
    for (; j < count; ++j) {
      const float value = bias != nullptr ? y[j] + bias[j] : y[j];
      out[j] = accumulate ? out[j] + value : value;
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
HWY_EXPORT(Scale);
HWY_EXPORT(Store);

void UnpackNibbles(const uint8_t* nibbles, int64_t inputs, uint8_t* bytes) {
  HWY_DYNAMIC_DISPATCH(Unpack)(nibbles, inputs, bytes);
}

void ApplyScales(const TileSums& sums, const IntPanels& weights, const Activations& acts,
                 const int32_t* code_sums, float* y) {
  HWY_DYNAMIC_DISPATCH(Scale)(sums, weights, acts, code_sums, y);
}

void StoreTile(const float* y, int64_t rows, int64_t count, const float* bias, bool accumulate,
               float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(Store)(y, rows, count, bias, accumulate, out, out_stride);
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
