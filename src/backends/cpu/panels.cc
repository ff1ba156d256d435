// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/panels.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "backends/cpu/int_kernels.h"
#include "base/thread_pool.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t RoundUp(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

// Large matrices lie in huge pages where the system grants them: a GEMV touches each page once, and
// with 4 KiB pages the address translation costs as much as the bytes.
uint8_t* Allocate(int64_t bytes) {
  const int64_t alignment = bytes >= 4 * kHugePage ? kHugePage : 64;
  const auto size = static_cast<size_t>(RoundUp(bytes, alignment));
  void* memory = std::aligned_alloc(static_cast<size_t>(alignment), size);
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) madvise(memory, size, MADV_HUGEPAGE);  // a hint: failure is harmless
  return static_cast<uint8_t*>(memory);
}

void SetGroups(const PackedLinear& linear, IntPanels& p) {
  const FormatSpec& w = linear.weights.format;
  const FormatSpec& a = linear.input.activation;
  const int64_t weight_cols = p.cols / w.groups(p.cols), act_cols = p.cols / a.groups(p.cols);
  const int64_t cols = std::min(weight_cols, act_cols);
  if (std::max(weight_cols, act_cols) % cols != 0 || (cols < p.cols && cols % 8 != 0)) {
    Fail(
        "groups of {} weights and {} activations: one must divide the other, and both be multiples "
        "of 8",
        weight_cols, act_cols);
  }
  if (cols > std::numeric_limits<int32_t>::max() / (255 * 128)) {
    Fail("{} inputs overflow an int32 sum; use groups", cols);
  }
  p.groups = p.cols / cols;
  p.group_cols = p.groups == 1 ? p.padded_cols : cols;
  p.per_weight_group = weight_cols / cols;
  p.per_act_group = act_cols / cols;
}

// The signed codes of one panel's outputs, [16, padded_cols], zero outside the matrix.
void ReadCodes(const PackedWeights& w, int64_t panel, const IntPanels& p,
               std::vector<int8_t>& codes) {
  codes.assign(static_cast<size_t>(kPanel * p.padded_cols), 0);
  std::vector<int16_t> row(static_cast<size_t>(p.cols));
  const auto packed = w.codes.as<uint8_t>();
  const int64_t row_bytes = PackedBytes(p.cols, w.format.bits);
  for (int64_t j = 0; j < kPanel && panel * kPanel + j < p.rows; ++j) {
    UnpackCodes(packed.data() + (panel * kPanel + j) * row_bytes, p.cols, w.format.bits, true,
                row.data());
    std::transform(row.begin(), row.end(), codes.begin() + j * p.padded_cols,
                   [](int16_t code) { return static_cast<int8_t>(code); });
  }
}

// Four inputs of one output are one 32-bit word of the panel.
void WriteCodes(const std::vector<int8_t>& codes, int64_t panel, IntPanels& p) {
  uint8_t* out = p.codes.get() + panel * p.Bytes(p.padded_cols);
  const auto word = [&](int64_t j, int64_t k) {
    uint32_t four;
    std::memcpy(&four, codes.data() + j * p.padded_cols + k, sizeof(four));
    return four ^ (p.bits == 4 ? 0x08080808u : 0x80808080u);  // two's complement + 8 or + 128
  };
  const int64_t step = 32 / p.bits;
  for (int64_t k = 0; k < p.padded_cols; k += step) {
    for (int64_t j = 0; j < kPanel; ++j, out += sizeof(uint32_t)) {
      const uint32_t value = p.bits == 8
                                 ? word(j, k)
                                 : (word(j, k) & 0x0F0F0F0Fu) | (word(j, k + 4) << 4 & 0xF0F0F0F0u);
      std::memcpy(out, &value, sizeof(value));
    }
  }
}

void WriteConstants(const std::vector<int8_t>& codes, const Matrix<float>& scales,
                    const Matrix<int32_t>& zeros, int64_t panel, IntPanels& p) {
  const int64_t length = p.cols / p.groups;
  for (int64_t j = 0; j < kPanel && panel * kPanel + j < p.rows; ++j) {
    const int64_t n = panel * kPanel + j;
    for (int64_t g = 0; g < p.weight_groups(); ++g) {
      const int64_t i = (panel * p.weight_groups() + g) * kPanel + j;
      p.scales[i] = scales.data[n * p.weight_groups() + g];
      p.offsets[i] =
          static_cast<int16_t>((p.bits == 4 ? 8 : 128) + zeros.data[n * p.weight_groups() + g]);
    }
    if (p.column_sums.empty()) continue;
    for (int64_t g = 0; g < p.groups; ++g) {
      const int8_t* first = codes.data() + j * p.padded_cols + g * length;
      int32_t sum = 0;
      for (int64_t k = 0; k < length; ++k) sum += first[k];
      sum -=
          static_cast<int32_t>(length) * zeros.data[n * p.weight_groups() + g / p.per_weight_group];
      p.column_sums[(panel * p.groups + g) * kPanel + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace

IntPanels PackPanels(const PackedLinear& linear) {
  const PackedWeights& w = linear.weights;
  IntPanels p{.rows = w.rows, .cols = w.cols};
  p.padded_cols = RoundUp(p.cols, 64);
  p.panels = RoundUp(p.rows, kTileOutputs) / kPanel;
  p.bits = w.format.bits <= 4 ? 4 : 8;
  p.activation = linear.input.activation;
  SetGroups(linear, p);
  p.codes.reset(Allocate(p.panels * p.Bytes(p.padded_cols)));
  p.scales.resize(static_cast<size_t>(p.panels * p.weight_groups() * kPanel));
  p.offsets.resize(p.scales.size());
  if (!p.activation.symmetric) {
    p.column_sums.resize(static_cast<size_t>(p.panels * p.groups * kPanel));
  }
  const Matrix<float> scales = DecodeScales(w);
  const Matrix<int32_t> zeros = DecodeZeros(w);
  ParallelFor(static_cast<size_t>(p.panels), [&](size_t i) {
    const auto panel = static_cast<int64_t>(i);
    std::vector<int8_t> codes;
    ReadCodes(w, panel, p, codes);
    WriteCodes(codes, panel, p);
    WriteConstants(codes, scales, zeros, panel, p);
  });
  if (linear.bias.data != nullptr) {
    p.bias = ToF32(linear.bias).data;
    p.bias.resize(static_cast<size_t>(p.panels * kPanel));
  }
  return p;
}

}  // namespace nibble::cpu
