// SPDX-License-Identifier: Apache-2.0
// The types of real numbers in device memory.
#pragma once

#include <cuda_bf16.h>

namespace nibble::cuda {

enum class WeightType { kFloat32, kBfloat16, kFloat16 };  // of weights that are not quantized
enum class RealType { kFloat32, kBfloat16 };              // of activations

inline constexpr RealType kIntermediate = RealType::kBfloat16;  // nibble::Intermediate

// function(float{}) or function(__nv_bfloat16{}): from the value to the type.
template <typename Function>
void WithReal(RealType type, const Function& function) {
  type == RealType::kFloat32 ? function(float{}) : function(__nv_bfloat16{});
}

}  // namespace nibble::cuda
