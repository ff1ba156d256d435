// SPDX-License-Identifier: Apache-2.0
// The hardware's own prefetching stops at every page, keeps too few lines on their way and begins
// anew where a kernel changes between streams.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace nibble::cpu {
namespace {

// Asks for as many bytes of codes, whole lines, as a kernel reads from `codes` on, but some ahead:
// by the second-level cache in time, by the first one shortly before use.
template <int64_t kBytes>
void PrefetchAhead(const uint8_t* codes) {
  for (int64_t i = 0; i < kBytes; i += 64) {
    _mm_prefetch(codes + i + 4096, _MM_HINT_T1);
    _mm_prefetch(codes + i + 1024, _MM_HINT_T0);
  }
}

}  // namespace
}  // namespace nibble::cpu
