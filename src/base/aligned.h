// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace nibble {

struct FreeBytes {
  void operator()(std::byte* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeBytes>;

// `bytes` zero bytes at a 64-byte boundary (a cache line, an AVX-512 register, an AMX tile row).
inline AlignedBytes MakeAlignedBytes(size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(64, bytes == 0 ? 64 : bytes));
  if (p == nullptr) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return AlignedBytes(p);
}

}  // namespace nibble
