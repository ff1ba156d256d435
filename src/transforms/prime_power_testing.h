// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace nibble {

// Returns whether n has one prime divisor: the definition, with no code of the library.
inline bool IsPrimePower(int64_t n) {
  int primes = 0;
  for (int64_t p = 2; p <= n; ++p) {
    if (n % p != 0) continue;
    ++primes;
    while (n % p == 0) n /= p;
  }
  return primes == 1;
}

}  // namespace nibble
