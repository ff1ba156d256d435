// SPDX-License-Identifier: Apache-2.0
// The logits of a mixture's router: RMS norm and product with a few float rows in one launch. Sums
// over inputs are those of 128 threads, each in fp32, in an order that does not depend on the
// number of tokens.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"

namespace nibble::cuda {

struct RouterArguments {
  const float* x = nullptr;     // [tokens, cols]
  const float* norm = nullptr;  // [cols] weight of the RMS norm, or null
  float eps = 0;
  int64_t tokens = 0, experts = 0, cols = 0;  // cols: a multiple of 4
  const void* w = nullptr;                    // [experts, cols]
  WeightType w_type = WeightType::kFloat32;
  const float* bias = nullptr;  // [experts] or null
  float* logits = nullptr;      // [tokens, experts]
};

// A dependent launch; the kernel in front must not write w.
void RouterLogits(const RouterArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
