// SPDX-License-Identifier: Apache-2.0
// The hardware's own prefetching stops at every page, keeps too few lines on their way and begins
// anew where a kernel changes between streams.
#pragma once

#include <cstdint>

namespace nibble::cpu {
namespace {

// Asks for as many bytes of codes, whole lines, as a kernel reads from `codes` on, but some ahead:
// by the second-level cache in time, by the first one shortly before use. As assembly: GCC 12 takes
// a function of _mm_prefetch alone for one without effects, and drops the calls.
template <int64_t kBytes>
void PrefetchAhead(const uint8_t* codes) {
  for (int64_t i = 0; i < kBytes; i += 64) {
    asm volatile("prefetcht1 %0" ::"m"(codes[i + 4096]));
    asm volatile("prefetcht0 %0" ::"m"(codes[i + 1024]));
  }
}

}  // namespace
}  // namespace nibble::cpu
