// SPDX-License-Identifier: Apache-2.0
// Working memory of a thread, as Highway aligns it (whose own MakeUniqueAligned goes on with null).
#pragma once

#include <hwy/aligned_allocator.h>

#include <new>
#include <type_traits>

namespace nibble::cpu {

template <typename T>
hwy::AlignedFreeUniquePtr<T[]> MakeWorkspace() {
  static_assert(std::is_trivially_destructible_v<T>);
  auto work = hwy::AllocateAligned<T>(1);
  if (work == nullptr) throw std::bad_alloc();
  new (work.get()) T;
  return work;
}

}  // namespace nibble::cpu
