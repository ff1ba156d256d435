// SPDX-License-Identifier: Apache-2.0
#include "engine/page_pool.h"

#include <algorithm>

namespace nibble {

PagePool::PagePool(int64_t page_bytes, Backend& backend, int64_t capacity)
    : page_bytes_(static_cast<size_t>(page_bytes)), capacity_(capacity), backend_(&backend) {}

PagePool::Page PagePool::Take() {
  if (free_.empty()) {
    if (in_use() >= capacity_) return nullptr;
    memory_.reserve(memory_.size() + 1);
    free_.reserve(memory_.size() + 1);  // so that a page's end cannot fail
    memory_.push_back(backend_->Allocate(page_bytes_));
    free_.push_back(memory_.back().get());
  }
  std::byte* const page = free_.back();
  free_.pop_back();
  return {page, [this](std::byte* p) { free_.push_back(p); }};
}

PagePool::Page PagePool::CopyOf(const Page& page) {
  Page copy = Take();
  if (copy != nullptr) {
    // Pages are multiples of 64 bytes.
    backend_->Copy(reinterpret_cast<const float*>(page.get()),
                   static_cast<int64_t>(page_bytes_ / sizeof(float)),
                   reinterpret_cast<float*>(copy.get()));
  }
  return copy;
}

void PagePool::Trim() {
  std::erase_if(memory_, [&](const AlignedBytes& memory) {
    return std::ranges::find(free_, memory.get()) != free_.end();
  });
  free_.clear();
}

}  // namespace nibble
