// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace nibble::cpu {

// MathServices::AddGram on AMX: two bf16 terms of each factor, three products.
void AddGramBf16(const float* left, const float* right, int64_t tokens, int64_t width, double* sum);

// MathServices::AddGram of inputs rounded to bf16, with AVX-512 BF16.
void AddGramPairs(const float* left, const float* right, int64_t tokens, int64_t width,
                  double* sum);

}  // namespace nibble::cpu
