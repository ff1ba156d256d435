// SPDX-License-Identifier: Apache-2.0
// A hash with a secret of the process: a file cannot choose keys that collide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>

namespace nibble {

struct SecretHash {
  using is_transparent = void;

  size_t operator()(std::string_view text) const {
    uint64_t hash = text.size();
    for (; text.size() > 8; text.remove_prefix(8)) hash = Mix(hash ^ Word(text.data(), 8));
    return Mix(hash ^ Word(text.data(), text.size()));
  }
  size_t operator()(uint64_t key) const { return Mix(key); }

 private:
  // Up to 8 bytes as a word, from four bytes on read in two pieces: most tokens have so few.
  static uint64_t Word(const char* bytes, size_t size) {
    uint64_t word = 0;
    if (size >= 4) {
      uint32_t first, last;
      std::memcpy(&first, bytes, 4);
      std::memcpy(&last, bytes + size - 4, 4);
      return uint64_t{first} << 32 | last;
    }
    for (size_t i = 0; i < size; ++i) word = word << 8 | static_cast<unsigned char>(bytes[i]);
    return word;
  }
  // The halves of a product with a secret number, which no other bits of `x` can cancel.
  static uint64_t Mix(uint64_t x) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(x ^ kOffset) * kFactor;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  static uint64_t Random() {
    std::random_device random;
    return (uint64_t{random()} << 32 | random()) | 1;
  }
  static inline const uint64_t kOffset = Random(), kFactor = Random();
};

}  // namespace nibble
