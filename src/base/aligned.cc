// SPDX-License-Identifier: Apache-2.0
#include "base/aligned.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace nibble {

AlignedBytes AllocateBytes(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const size_t size = (bytes + alignment - 1) / alignment * alignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(alignment, size == 0 ? alignment : size));
  if (p == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) madvise(p, size, MADV_HUGEPAGE);  // a hint: failure is harmless
  return AlignedBytes(p);
}

AlignedBytes MakeAlignedBytes(size_t bytes) {
  AlignedBytes memory = AllocateBytes(bytes);
  if (bytes != 0) std::memset(memory.get(), 0, bytes);
  return memory;
}

}  // namespace nibble
