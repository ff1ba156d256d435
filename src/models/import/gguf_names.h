// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/config.h"
#include "models/families/family.h"
#include "tensor/tensor.h"

namespace nibble {

// The family with the names that a GGUF file gives the tensors of a model, whose config.json is
// read as any other.
const Family& GgufFamilyOf(const ModelConfig& config, const std::string& where);
// The beginning of names of tensors that follow from config.json: rope_freqs, rope_factors_long and
// _short.
inline constexpr const char* kGgufRopePrefix = "rope_f";

// Rows of q or k with the two that RoPE turns together side by side, as converters write them: row
// i + j * turned / 2 of a head was row 2i + j; those from `turned` on stay.
Tensor PairsApart(const Tensor& tensor, int64_t head_dim, int64_t turned);

}  // namespace nibble
