// SPDX-License-Identifier: Apache-2.0
// Size arithmetic on numbers that come from files: nullopt instead of wrapping around.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace nibble {

inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

inline std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

// Product of a shape times the element size in bytes.
inline std::optional<uint64_t> CheckedBytes(std::span<const int64_t> shape,
                                            uint64_t element_bytes) {
  uint64_t bytes = element_bytes;
  for (int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    const auto next = CheckedMul(bytes, static_cast<uint64_t>(extent));
    if (!next) return std::nullopt;
    bytes = *next;
  }
  return bytes;
}

}  // namespace nibble
