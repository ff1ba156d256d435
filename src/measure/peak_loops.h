// SPDX-License-Identifier: Apache-2.0
// Loops that do nothing but multiply (or read), to measure what a core can do at most. Like
// int_kernels.h, this is all that the files built with extra instruction flags may include.
#pragma once

#include <cstdint>

namespace nibble::cpu {

// `steps` rounds of independent multiply-adds in registers; the result only keeps them alive.
int avx2_peak_u8s8(int64_t steps);  // maddubs + madd + add
int avx2_peak_f32(int64_t steps);
int avx_vnni_peak_u8s8(int64_t steps);  // vpdpbusd
int avx512_peak_u8s8(int64_t steps);    // vpdpbusd
int avx512_peak_f32(int64_t steps);
int amx_peak_u8s8(int64_t steps);  // tdpbsud
int amx_peak_bf16(int64_t steps);

// Reads `bytes` (a multiple of 512).
int avx2_read(const uint8_t* data, int64_t bytes);
int avx512_read(const uint8_t* data, int64_t bytes);

// Multiplications and additions of one step.
inline constexpr int64_t kAvx2StepInt = 8 * 32 * 2, kAvx2StepF32 = 12 * 8 * 2;
inline constexpr int64_t kAvxVnniStepInt = 12 * 32 * 2;
inline constexpr int64_t kAvx512StepInt = 16 * 64 * 2, kAvx512StepF32 = 16 * 16 * 2;
inline constexpr int64_t kAmxStepInt = 4 * 16 * 16 * 64 * 2, kAmxStepBf16 = 4 * 16 * 16 * 32 * 2;

}  // namespace nibble::cpu
