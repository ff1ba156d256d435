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

// Brings gate and up within their limit and turns up into the factor beside the opened gate.
__device__ __forceinline__ void Clamp(const GateSpec& g, float& gate, float& other) {
  if (g.limit > 0) {
    gate = fminf(gate, g.limit);
    other = fminf(fmaxf(other, -g.limit), g.limit);
  }
  other = g.alone ? 1.0f : other + g.up_offset;
}

__device__ __forceinline__ float Sigmoid(float x) {
  return Reciprocal(1.0f + Exp2(x * -1.4426950408889634f));
}

// Replaces each gate v[i] by its GLU output with up[i], for openings by sigmoids. The kind of
// sigmoid is tested once for all values, so that their divisions overlap.
template <int count>
__device__ __forceinline__ void SigmoidGateTimes(const GateSpec& gating, float (&v)[count],
                                                 const float (&up)[count]) {
  if (IsSilu(gating)) {
#pragma unroll
    for (int i = 0; i < count; ++i) v[i] = v[i] * up[i] * Sigmoid(v[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    float gate = v[i], other = up[i];
    Clamp(gating, gate, other);
    // Squares stay finite, so that none times 0 is NaN.
    const float gradient = fmaf(gating.cubic, fminf(gate * gate, 1e30f), gating.linear);
    v[i] = gate * other * Sigmoid(gate * gradient);
  }
}

// SigmoidGateTimes of eight bf16 gates and ups.
__device__ __forceinline__ uint4 SigmoidGateTimes(const GateSpec& gating, const uint4& gates,
                                                  const uint4& ups) {
  float v[8], up[8];
  UnpackBf16(gates, v);
  UnpackBf16(ups, up);
  SigmoidGateTimes(gating, v, up);
  return {PackBf16(v[0], v[1]), PackBf16(v[2], v[3]), PackBf16(v[4], v[5]), PackBf16(v[6], v[7])};
}

// SigmoidGateTimes for any opening.
template <int count>
__device__ __forceinline__ void GateTimes(const GateSpec& gating, float (&v)[count],
                                          const float (&up)[count]) {
  using Opening = GateSpec::Opening;
  if (gating.opening == Opening::kSigmoid) return SigmoidGateTimes(gating, v, up);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    float gate = v[i], other = up[i];
    Clamp(gating, gate, other);
    const float open =
        gating.opening == Opening::kNormal ? gate * normcdff(gate) : fmaxf(gate, 0.0f);
    v[i] = open * other;
  }
}

}  // namespace nibble::cuda
