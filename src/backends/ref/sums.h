// SPDX-License-Identifier: Apache-2.0
// The innermost loops of ref's products, compiled without sanitizers, under which they would be
// half of all tests' time. Both spans have one size.
#pragma once

#include <cstdint>
#include <span>

namespace nibble {

// Sum of a[i] b[i]; fewer than 2^17 products of codes fit.
int32_t Dot(std::span<const int8_t> a, std::span<const int8_t> b);
// y[i] = y[i] + x w[i], rounded twice.
void AddScaled(float x, std::span<const float> w, std::span<float> y);

}  // namespace nibble
