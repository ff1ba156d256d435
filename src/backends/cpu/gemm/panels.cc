// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/gemm/panels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backends/cpu/gemm/int_kernels.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "formats/tile_order.h"

namespace nibble::cpu {
namespace {

void SetGroups(const FormatSpec& w, IntPanels& p) {
  const FormatSpec& a = p.activations;
  const int64_t weight_cols = p.cols / w.scales(p.cols), act_cols = p.cols / a.groups(p.cols);
  const int64_t cols = std::min(weight_cols, act_cols);
  const int64_t step = w.lattice() ? 32 : 8;
  if (std::max(weight_cols, act_cols) % cols != 0 || (cols < p.cols && cols % step != 0)) {
    Fail(
        "groups of {} weights and {} activations: one must divide the other, and both be multiples "
        "of {}",
        weight_cols, act_cols, step);
  }
  if (cols > std::numeric_limits<int32_t>::max() / (255 * 128)) {
    Fail("{} inputs overflow an int32 sum; use groups", cols);
  }
  p.groups = p.cols / cols;
  p.group_cols = p.groups == 1 ? p.padded_cols : cols;
  p.per_weight_group = weight_cols / cols;
  p.per_act_group = act_cols / cols;
}

// Writes convert(x) for each x of `from` [rows, weight groups], in the order of panels.
template <typename From, typename To, typename Convert>
void WriteConstants(const IntPanels& p, int64_t panel, const Matrix<From>& from,
                    std::vector<To>& to, const Convert& convert) {
  const int64_t groups = p.weight_groups();
  for (int64_t j = 0; j < kPanel && panel * kPanel + j < p.rows; ++j) {
    for (int64_t g = 0; g < groups; ++g) {
      const From value = from.data[static_cast<size_t>((panel * kPanel + j) * groups + g)];
      to[static_cast<size_t>((panel * groups + g) * kPanel + j)] = static_cast<To>(convert(value));
    }
  }
}

void WriteScales(const Matrix<float>& scales, const Matrix<int32_t>& zeros, int64_t panel,
                 IntPanels& p) {
  if (p.half_scales.empty()) {
    WriteConstants(p, panel, scales, p.scales, [](float scale) { return scale; });
  } else {
    WriteConstants(p, panel, scales, p.half_scales, F16FromF32);  // exact: they were fp16
  }
  if (p.offsets.empty()) return;
  WriteConstants(p, panel, zeros, p.offsets, [&p](int32_t zero) { return p.offset() + zero; });
}

void WriteSteps(const PackedWeights& w, const Matrix<int32_t>& zeros, int64_t panel, IntPanels& p) {
  const uint8_t* scales = w.group_scales.as<uint8_t>().data();
  uint16_t* steps = p.steps.data() + panel * p.step_groups() * kPanel;
  for (int64_t j = 0; j < kPanel && panel * kPanel + j < p.rows; ++j) {
    for (int64_t g = 0; g < w.groups(); ++g) {
      const int64_t at = (panel * kPanel + j) * w.groups() + g;
      steps[g * kPanel + j] = LevelStep(scales[at], zeros.data[at]);
    }
  }
}

// The unsigned codes of inputs [begin, begin + cols) of a panel, summed.
void SumCodes(const IntPanels& p, int64_t panel, int64_t begin, int64_t cols, int32_t* sums) {
  const uint8_t* first = p.panel(panel) + p.Bytes(begin);
  const uint8_t* last = first + p.Bytes(cols);
  int32_t lanes[4 * kPanel] = {};
  const auto code = [&](int nibble) {
    return p.form() == Form::kFloats ? kFloatBytes[nibble] : nibble;
  };
  for (const uint8_t* line = first; line < last; line += 4 * kPanel) {
    for (int64_t i = 0; i < 4 * kPanel; ++i) {
      lanes[i] += p.bits == 4 ? code(line[i] & 15) + code(line[i] >> 4) : line[i];
    }
  }
  for (int64_t j = 0; j < kPanel; ++j)
    sums[j] = std::accumulate(lanes + 4 * j, lanes + 4 * j + 4, 0);
}

// Adds the codewords of inputs [begin, last) to `sums`.
void SumCodewords(const IntPanels& p, int64_t panel, int64_t begin, int64_t last, int32_t* sums) {
  const LatticeCode lattice(p.bits);
  const uint8_t* block = p.panel(panel) + p.Bytes(begin);
  for (int64_t k = begin; k < last; k += 32, block += p.Bytes(32)) {
    for (int64_t at = 0; at < 4 * kPanel; ++at) {
      if (k + at % 4 * 8 >= last) continue;
      uint32_t code = 0;
      for (int byte = 0; byte < p.bits; ++byte) {
        code |= uint32_t{block[byte * 4 * kPanel + at]} << 8 * byte;
      }
      const LatticeCode::Codeword codeword = lattice.Decode(code);
      sums[at / 4] = std::accumulate(codeword.begin(), codeword.end(), sums[at / 4]);
    }
  }
}

void WriteColumnSums(const Matrix<float>& scales, const Matrix<int32_t>& zeros, int64_t panel,
                     IntPanels& p) {
  const auto length = static_cast<int32_t>(p.cols / p.groups);
  for (int64_t g = 0; g < p.groups; ++g) {
    int32_t sums[kPanel] = {};
    const int64_t begin = g * p.group_cols;
    if (p.lattice()) {
      SumCodewords(p, panel, begin, std::min(begin + p.group_cols, p.cols), sums);
    } else {
      SumCodes(p, panel, begin, p.group_cols, sums);
      // Padding counts as code 0.
      for (int32_t& sum : sums) sum -= static_cast<int32_t>(p.offset() * p.group_cols);
    }
    for (int64_t j = 0; j < kPanel && panel * kPanel + j < p.rows; ++j) {
      const int32_t zero =
          zeros.data[(panel * kPanel + j) * p.weight_groups() + g / p.per_weight_group];
      const int32_t sum = sums[j] - length * zero;
      if (p.scale_last()) {
        const float scale = scales.data[(panel * kPanel + j) * p.weight_groups() + g];
        float& total = p.column_sums[panel * kPanel + j];
        total = std::fma(scale, static_cast<float>(sum), total);
      } else {
        p.column_sums[(panel * p.groups + g) * kPanel + j] = static_cast<float>(sum);
      }
    }
  }
}

// WriteColumnSums with a second level of scales, where the whole row is one group.
void WriteColumnSums(int64_t panel, IntPanels& p) {
  const uint16_t* steps = p.panel_steps(panel);
  int32_t totals[kPanel] = {};
  for (int64_t k = 0; k < p.cols; k += p.step_cols, steps += kPanel) {
    int32_t sums[kPanel];
    SumCodes(p, panel, k, p.step_cols, sums);
    for (int64_t j = 0; j < kPanel; ++j) {
      const int32_t scale = steps[j] & 255, start = steps[j] >> 8;
      totals[j] += scale * sums[j] + (start - 128) * static_cast<int32_t>(p.step_cols);
    }
  }
  for (int64_t j = 0; j < kPanel; ++j) {
    p.column_sums[panel * kPanel + j] = static_cast<float>(totals[j]);
  }
}

}  // namespace

IntPanels PanelLayout(const FormatSpec& weights, int64_t rows, int64_t cols,
                      const FormatSpec& activations) {
  const TileOrder order({.format = weights, .rows = rows, .cols = cols});
  IntPanels p{.rows = rows,
              .cols = cols,
              .padded_cols = order.padded_cols,
              .panels = order.panels,
              .bits = order.bits,
              .codebook = weights.codebook,
              .activations = activations,
              .step_cols = weights.second_level ? weights.group : 0};
  SetGroups(weights, p);
  return p;
}

IntPanels PackPanels(const PackedWeights& w, const FormatSpec& activations, const Tensor& bias) {
  IntPanels p = PanelLayout(w.format, w.rows, w.cols, activations);
  const TileOrder order(w);
  if (w.tiles.data != nullptr) {
    p.codes = w.tiles.as<uint8_t>().data();
  } else {
    p.memory = AllocateBytes(static_cast<size_t>(order.bytes()));
    auto* codes = reinterpret_cast<uint8_t*>(p.memory.get());
    PackTiles(w, codes);
    p.codes = codes;
  }
  const auto constants = static_cast<size_t>(p.panels * p.weight_groups() * kPanel);
  if (w.scales.dtype == DType::kF16) {
    p.half_scales.resize(constants);
  } else {
    p.scales.resize(constants);
  }
  if (!w.format.symmetric && !p.second_level()) p.offsets.resize(constants);
  if (!p.activations.symmetric) {
    p.column_sums.resize(static_cast<size_t>(p.panels * (p.scale_last() ? 1 : p.groups) * kPanel));
  }
  const bool levels = p.second_level();
  if (levels) {
    p.steps.resize(static_cast<size_t>(p.panels * p.step_groups() * kPanel));
  }
  const Matrix<float> scales = DecodeScales(w);
  const Matrix<int32_t> zeros = DecodeZeros(w);
  ParallelFor(static_cast<size_t>(p.panels), [&](size_t i) {
    const auto panel = static_cast<int64_t>(i);
    WriteScales(scales, zeros, panel, p);
    if (levels) WriteSteps(w, zeros, panel, p);
    if (p.column_sums.empty()) return;
    levels ? WriteColumnSums(panel, p) : WriteColumnSums(scales, zeros, panel, p);
  });
  if (bias.data != nullptr) {
    p.bias = ToF32(bias).data;
    p.bias.resize(static_cast<size_t>(p.panels * kPanel));
  }
  return p;
}

}  // namespace nibble::cpu
