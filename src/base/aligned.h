// SPDX-License-Identifier: Apache-2.0
// Memory for large tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

namespace nibble {

// A pointer to memory with the function that frees it: std::free cannot free a GPU's memory.
struct FreeBytes {
  void (*free)(void*) = std::free;
  void operator()(std::byte* p) const { free(p); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeBytes>;
using Allocator = std::function<AlignedBytes(size_t bytes)>;

// Returns uninitialized memory at a 64-byte boundary (a cache line, an AVX-512 register, an AMX
// tile row); from 2 MiB on in huge pages where the system grants them: with 4 KiB pages, address
// translation costs a stream as much as its bytes.
AlignedBytes AllocateBytes(size_t bytes);
// Returns memory as AllocateBytes does, filled with zeros.
AlignedBytes MakeAlignedBytes(size_t bytes);

// Grow-only working memory: Grow may move it and then forgets what it held.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(Allocator allocate) : allocate_(std::move(allocate)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    allocate_ = std::move(other.allocate_);
    memory_ = std::move(other.memory_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  T* data() const { return reinterpret_cast<T*>(memory_.get()); }
  int64_t size() const { return static_cast<int64_t>(bytes_ / sizeof(T)); }
  T* Grow(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (bytes > bytes_) {
      memory_.reset();  // first, so that old and new memory never exist together
      memory_ = allocate_ ? allocate_(bytes) : AllocateBytes(bytes);
      bytes_ = bytes;
    }
    return data();
  }

 private:
  Allocator allocate_;  // empty: AllocateBytes
  AlignedBytes memory_;
  size_t bytes_ = 0;
};

}  // namespace nibble
