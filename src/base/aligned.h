// SPDX-License-Identifier: Apache-2.0
// Memory for large tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

namespace nibble {

struct FreeBytes {
  void operator()(std::byte* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeBytes>;

// Not initialized, at a 64-byte boundary (a cache line, an AVX-512 register, an AMX tile row); from
// 2 MiB on in huge pages where the system grants them: with 4 KiB pages, address translation costs
// a stream as much as its bytes.
AlignedBytes AllocateBytes(size_t bytes);
// The same, all zero.
AlignedBytes MakeAlignedBytes(size_t bytes);

// Grow-only working memory: Grow may move it and then forgets what it held.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}

  T* data() const { return reinterpret_cast<T*>(memory_.get()); }
  int64_t size() const { return static_cast<int64_t>(bytes_ / sizeof(T)); }
  T* Grow(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (bytes > bytes_) {
      memory_.reset();  // first, so that old and new memory never exist together
      memory_ = AllocateBytes(bytes);
      bytes_ = bytes;
    }
    return data();
  }

 private:
  AlignedBytes memory_;
  size_t bytes_ = 0;
};

}  // namespace nibble
