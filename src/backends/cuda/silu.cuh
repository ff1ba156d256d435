// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.h"

namespace nibble::cuda {

__device__ inline float SiluTimes(float gate, float up) {
  return gate * up * Reciprocal(1.0f + Exp2(gate * -1.4426950408889634f));
}

}  // namespace nibble::cuda
