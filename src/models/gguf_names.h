// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/config.h"
#include "tensor/tensor.h"

namespace nibble {

// How a GGUF file names the tensors of a llama model; its config.json is read as any other.
extern const Family kGgufLlama;
// Follows from config.json.
inline constexpr const char* kGgufRopeFactors = "rope_freqs.weight";

// Rows of q or k with the two that RoPE turns together side by side, as converters write them:
// row i + j * head_dim / 2 of a head was row 2i + j.
Tensor PairsApart(const Tensor& tensor, int64_t head_dim);

}  // namespace nibble
