// SPDX-License-Identifier: Apache-2.0
// Decodes activations for calibration. Device pointers; everything is enqueued, and nibble::Error
// is thrown if a launch is refused.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::cuda {

// values [tokens, width] = scale * (code + z), from codes [tokens, stride] with `groups` scales
// and zero offsets (null: 0) per row, [groups, ScalePitch(tokens)].
struct DecodeArguments {
  const int8_t* codes;
  int64_t stride;
  const float *scales, *zero_offsets;
  int64_t tokens, width, groups;
  float* values;
};
void DecodeActivations(const DecodeArguments& arguments, cudaStream_t stream);

}  // namespace nibble::cuda
