// SPDX-License-Identifier: Apache-2.0
// The project's only source of randomness: splitmix64 (Steele, Lea, Flood 2014). The same seed
// gives the same numbers on every machine and compiler, which std:: distributions do not promise.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

namespace nibble {

class Rng {
 public:
  // Streams of one seed are independent: Rng(seed, layer) for example.
  explicit Rng(uint64_t seed, uint64_t stream = 0) : state_(seed) {
    state_ = Next() ^ (stream * 0xD1342543DE82EF95ull);
    Next();
  }

  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  // Uniform in 0..n-1; n > 0. Bias is below n / 2^64.
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }

  // Uniform in [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // Standard normal (Box-Muller).
  double Normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * Uniform());
  }

  // Any order of them is as likely as any other (Fisher, Yates).
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[Below(i)]);
  }
  // 0 to n-1, shuffled.
  template <typename T = int64_t>
  std::vector<T> Permutation(int64_t n) {
    std::vector<T> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), T{0});
    Shuffle(order);
    return order;
  }

  // n random signs, +1 or -1.
  std::vector<int8_t> Signs(size_t n) {
    std::vector<int8_t> signs(n);
    for (int8_t& sign : signs) sign = (Next() >> 63) != 0 ? 1 : -1;
    return signs;
  }

 private:
  uint64_t state_;
};

}  // namespace nibble
