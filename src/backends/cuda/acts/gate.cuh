// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include "backends/cuda/ptx/ptx.h"
#include "formats/gate_spec.h"

namespace nibble::cuda {

__device__ inline float GateTimes(const GateSpec& gating, float gate, float up) {
  using Opening = GateSpec::Opening;
  constexpr float kLog2E = 1.4426950408889634f;
  if (gating.limit > 0) {
    gate = fminf(gate, gating.limit);
    up = fminf(fmaxf(up, -gating.limit), gating.limit);
  }
  up = gating.alone ? 1.0f : up + gating.up_offset;
  if (gating.opening == Opening::kNormal) return gate * normcdff(gate) * up;
  if (gating.opening == Opening::kStep) return fmaxf(gate, 0.0f) * up;
  // Squares stay finite, so that none times 0 is NaN.
  const float slope = fmaf(gating.cubic, fminf(gate * gate, 1e30f), gating.linear);
  return gate * up * Reciprocal(1.0f + Exp2(gate * slope * -kLog2E));
}

// Of eight bf16 each.
__device__ __forceinline__ uint4 GateTimes(const GateSpec& gating, const uint4& gates,
                                           const uint4& ups) {
  float gate[8], up[8];
  UnpackBf16(gates, gate);
  UnpackBf16(ups, up);
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = PackBf16(GateTimes(gating, gate[2 * i], up[2 * i]),
                        GateTimes(gating, gate[2 * i + 1], up[2 * i + 1]));
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

}  // namespace nibble::cuda
