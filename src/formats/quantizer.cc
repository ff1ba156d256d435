// SPDX-License-Identifier: Apache-2.0
#include "formats/quantizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "formats/kv_format.h"

namespace nibble {
namespace {

struct Range {
  float lo, hi;
};

Range RangeOf(std::span<const float> x) {
  Range r = {x[0], x[0]};
  for (float v : x) r = {std::min(r.lo, v), std::max(r.hi, v)};
  return r;
}

float AbsMax(std::span<const float> x) {
  float m = 0;
  for (float v : x) m = std::max(m, std::fabs(v));
  return m;
}

// Round half to even, then clamp; in this order so that huge values saturate.
float RoundClamp(float x, float lo, float hi) {
  return std::min(std::max(std::nearbyintf(x), lo), hi);
}

float ClipPerStep(const FormatSpec& format) {
  return static_cast<float>(format.clip) / static_cast<float>((1 << (format.bits - 1)) - 1);
}

// Scale of symmetric codes -half .. half - 1.
float ActivationScale(std::span<const float> x, const FormatSpec& format, float half) {
  if (!format.signed_scale) return std::max(AbsMax(x) * ClipPerStep(format), kMinScale);
  const Range range = RangeOf(x);
  const float max = range.hi >= -range.lo ? range.hi : range.lo;
  const float scale = -max * (static_cast<float>(format.clip) / half);
  return std::fabs(scale) < kMinScale ? kMinScale : scale;
}

void StoreKvFloats(std::span<const float> x, int bits, uint8_t* row) {
  if (bits == 32) {
    std::memcpy(row, x.data(), x.size_bytes());
  } else {
    std::ranges::transform(x, reinterpret_cast<uint16_t*>(row), Bf16FromF32);
  }
}

void LoadKvFloats(const uint8_t* row, int bits, std::span<float> x) {
  if (bits == 32) {
    std::memcpy(x.data(), row, x.size_bytes());
  } else {
    std::transform(reinterpret_cast<const uint16_t*>(row),
                   reinterpret_cast<const uint16_t*>(row) + x.size(), x.begin(), F32FromBf16);
  }
}

}  // namespace

void QuantizeActivations(std::span<const float> x, const FormatSpec& format, const ActRow& out) {
  NIBBLE_CHECK(format.quantized() && format.bits >= 2, "{} bits", format.bits);
  const int64_t groups = format.groups(static_cast<int64_t>(x.size()));
  const size_t length = x.size() / static_cast<size_t>(groups);
  const float half = static_cast<float>(1 << (format.bits - 1));
  for (int64_t g = 0; g < groups; ++g) {
    const auto part = x.subspan(static_cast<size_t>(g) * length, length);
    int8_t* codes = out.codes + static_cast<size_t>(g) * length;
    int32_t sum = 0;
    if (format.symmetric) {
      const float scale = ActivationScale(part, format, half);
      const float inverse = 1.0f / scale;
      for (size_t i = 0; i < length; ++i) {
        codes[i] = static_cast<int8_t>(RoundClamp(part[i] * inverse, -half, half - 1));
        sum += codes[i];
      }
      out.scales[g] = scale;
    } else {
      const Range range = RangeOf(part);
      const float clip = static_cast<float>(format.clip);
      const float lo = range.lo * clip, hi = range.hi * clip;
      const float top = 2 * half - 1;
      const float scale = std::max((hi - lo) / top, kMinScale);
      const float inverse = 1.0f / scale;
      for (size_t i = 0; i < length; ++i) {
        codes[i] = static_cast<int8_t>(RoundClamp((part[i] - lo) * inverse, 0, top) - half);
        sum += codes[i];
      }
      out.scales[g] = scale;
      out.zero_offsets[g] = lo * inverse + half;
    }
    out.sums[g] = sum;
  }
}

void DequantizeActivations(const ActRow& row, const FormatSpec& format, std::span<float> x) {
  const int64_t groups = format.groups(static_cast<int64_t>(x.size()));
  const size_t length = x.size() / static_cast<size_t>(groups);
  for (size_t g = 0; g < static_cast<size_t>(groups); ++g) {
    const float scale = row.scales[g], zero_offset = format.symmetric ? 0 : row.zero_offsets[g];
    for (size_t i = g * length; i < (g + 1) * length; ++i) {
      x[i] = scale * (static_cast<float>(row.codes[i]) + zero_offset);
    }
  }
}

void QuantizeKv(std::span<const float> x, const FormatSpec& format, uint8_t* packed,
                uint16_t* params) {
  if (!format.quantized()) return StoreKvFloats(x, format.bits, packed);
  const int64_t groups = format.groups(static_cast<int64_t>(x.size()));
  const size_t length = x.size() / static_cast<size_t>(groups);
  const float top = static_cast<float>((1 << format.bits) - 1);
  const float clip = static_cast<float>(format.clip);
  int8_t codes[kMaxHeadDim];
  NIBBLE_CHECK(x.size() <= kMaxHeadDim, "head of {}", x.size());
  for (int64_t g = 0; g < groups; ++g) {
    const auto part = x.subspan(static_cast<size_t>(g) * length, length);
    float step, lo = 0;
    if (format.symmetric) {
      step = AbsMax(part) * ClipPerStep(format);
    } else {
      const Range range = RangeOf(part);
      lo = std::min(range.lo, 0.0f) * clip;
      step = (std::max(range.hi, 0.0f) * clip - lo) / top;
    }
    const uint16_t scale_bits = F16FromF32(std::clamp(step, kMinKvScale, kMaxKvScale));
    const float inverse = 1.0f / F32FromF16(scale_bits);
    const float zero = format.symmetric ? static_cast<float>(1 << (format.bits - 1))
                                        : RoundClamp(0.0f - lo * inverse, 0, top);
    for (size_t i = 0; i < length; ++i) {
      const float code = std::nearbyintf(part[i] * inverse) + zero;
      codes[static_cast<size_t>(g) * length + i] =
          static_cast<int8_t>(static_cast<int>(std::min(std::max(code, 0.0f), top)));
    }
    params[2 * g] = scale_bits;
    params[2 * g + 1] = F16FromF32(zero);
  }
  PackCodes(codes, static_cast<int64_t>(x.size()), format.bits, packed);
}

void DequantizeKv(const uint8_t* packed, const uint16_t* params, const FormatSpec& format,
                  std::span<float> x) {
  if (!format.quantized()) return LoadKvFloats(packed, format.bits, x);
  const int64_t groups = format.groups(static_cast<int64_t>(x.size()));
  const size_t length = x.size() / static_cast<size_t>(groups);
  thread_local std::vector<int16_t> codes;
  codes.resize(x.size());
  UnpackCodes(packed, static_cast<int64_t>(x.size()), format.bits, false, codes.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t g = i / length;
    x[i] =
        F32FromF16(params[2 * g]) * (static_cast<float>(codes[i]) - F32FromF16(params[2 * g + 1]));
  }
}

}  // namespace nibble
