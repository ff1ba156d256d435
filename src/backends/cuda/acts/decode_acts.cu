// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/acts/decode_acts.h"
#include "backends/cuda/acts/prepare_acts.h"
#include "backends/cuda/ptx/ptx.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr unsigned kThreads = 256;

// A block per token.
__global__ void DecodeKernel(const DecodeArguments a) {
  WaitForPreviousGrid();
  AllowNextGrid();
  const int64_t token = blockIdx.x, group_length = a.width / a.groups;
  for (int64_t k = threadIdx.x; k < a.width; k += kThreads) {
    const int64_t group = k / group_length * ScalePitch(a.tokens) + token;
    const float zero_offset = a.zero_offsets == nullptr ? 0.0f : a.zero_offsets[group];
    const float code = static_cast<float>(a.codes[token * a.stride + k]);
    a.values[token * a.width + k] = __fmul_rn(a.scales[group], __fadd_rn(code, zero_offset));
  }
}

}  // namespace

void DecodeActivations(const DecodeArguments& a, cudaStream_t stream) {
  if (a.tokens == 0) return;
  LaunchDependent(DecodeKernel, {.grid = static_cast<unsigned>(a.tokens), .block = kThreads},
                  stream, a);
}

}  // namespace nibble::cuda
