// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include "backends/cuda/ptx/ptx.h"
#include "formats/gate_spec.h"

namespace nibble::cuda {

__device__ __forceinline__ bool IsSilu(const GateSpec& g) {
  return g.opening == GateSpec::Opening::kSigmoid && g.linear == 1 && g.cubic == 0 &&
         g.limit == 0 && g.up_offset == 0 && !g.alone;
}

// v[i] becomes what gate v[i] lets through of up[i]. Which opening it is is asked once for all of
// them, so that their divisions overlap.
template <int count>
__device__ __forceinline__ void GateTimes(const GateSpec& gating, float (&v)[count],
                                          const float (&up)[count]) {
  using Opening = GateSpec::Opening;
  constexpr float kLog2E = 1.4426950408889634f;
  if (IsSilu(gating)) {
#pragma unroll
    for (int i = 0; i < count; ++i) v[i] = v[i] * up[i] * Reciprocal(1.0f + Exp2(v[i] * -kLog2E));
    return;
  }
  const auto each = [&](const auto& open) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      float gate = v[i], other = up[i];
      if (gating.limit > 0) {
        gate = fminf(gate, gating.limit);
        other = fminf(fmaxf(other, -gating.limit), gating.limit);
      }
      v[i] = open(gate, gating.alone ? 1.0f : other + gating.up_offset);
    }
  };
  if (gating.opening == Opening::kNormal) {
    each([](float gate, float other) { return gate * normcdff(gate) * other; });
  } else if (gating.opening == Opening::kStep) {
    each([](float gate, float other) { return fmaxf(gate, 0.0f) * other; });
  } else {
    each([&](float gate, float other) {
      // Squares stay finite, so that none times 0 is NaN.
      const float slope = fmaf(gating.cubic, fminf(gate * gate, 1e30f), gating.linear);
      return gate * other * Reciprocal(1.0f + Exp2(gate * slope * -kLog2E));
    });
  }
}

// Of eight bf16 each.
__device__ __forceinline__ uint4 GateTimes(const GateSpec& gating, const uint4& gates,
                                           const uint4& ups) {
  float v[8], up[8];
  UnpackBf16(gates, v);
  UnpackBf16(ups, up);
  GateTimes(gating, v, up);
  return {PackBf16(v[0], v[1]), PackBf16(v[2], v[3]), PackBf16(v[4], v[5]), PackBf16(v[6], v[7])};
}

}  // namespace nibble::cuda
