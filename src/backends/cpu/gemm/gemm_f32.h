// SPDX-License-Identifier: Apache-2.0
// isa says which instruction set runs (common/dispatch.h), and is at least kAvx2. Rows (tokens) are
// independent, in a fixed order of operations, and spread over the thread pool, so results do not
// depend on batch size or thread count.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/cpu/gemm/int_kernels.h"
#include "base/aligned.h"
#include "base/cpu_features.h"
#include "tensor/tensor.h"

namespace nibble::cpu {

// fp32 weights in panels of kPanelF32 outputs: [panel][k][kPanelF32], the last panel zero filled.
inline constexpr int64_t kPanelF32 = kTileOutputs;
struct PanelsF32 {
  int64_t rows = 0, cols = 0;  // N, K
  std::vector<float> data;
};
PanelsF32 PackF32(const Matrix<float>& weights);
// Packs straight from any float type (bf16 checkpoints are never expanded twice).
PanelsF32 PackF32(const Tensor& weights);

// y[t, n] (+)= sum_k x[t, k] w[n, k] + bias[n]: one chain of fused multiply-adds over ascending k
// per output, so a row has the same bits in any batch. bias may be null. y has row stride y_stride.
void GemmF32(Isa isa, const float* x, int64_t tokens, const PanelsF32& weights, const float* bias,
             float* y, int64_t y_stride, bool accumulate);

// Wide weights as bf16 tiles for AMX: [panel of kPanelF32 outputs][32 inputs][term][2 x 16 outputs]
// [16 pairs of inputs][16 outputs][2]. One term where the weights are bf16, else three.
struct PanelsBf16 {
  int64_t rows = 0, cols = 0, padded_cols = 0;  // N, K
  int64_t terms = 1;
  AlignedBytes data{};

  int64_t panel_values() const { return padded_cols * kPanelF32 * terms; }
  uint16_t* values() const { return reinterpret_cast<uint16_t*>(data.get()); }
};
PanelsBf16 PackBf16(const Tensor& weights);

// GemmF32 on AMX: products that are as exact as fp32's, summed in fp32 in an order that depends on
// K alone.
void GemmBf16(const float* x, int64_t tokens, const PanelsBf16& weights, const float* bias,
              float* y, int64_t y_stride, bool accumulate);

}  // namespace nibble::cpu
