// SPDX-License-Identifier: Apache-2.0
// The pages (formats/kv_format.h) that the caches of one model take theirs from. A page holds
// kPageTokens tokens of the layers of a group (kv_groups.h) and lives as long as someone holds it:
// sequences with the same beginning may hold the same pages.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "compute/backend.h"

namespace nibble {

class PagePool {
 public:
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
  // A page lies in the backend's memory and goes back to the pool, not to the backend.
  using Page = std::shared_ptr<std::byte>;

  // At most `capacity` pages exist. The backend must outlive the pool, and the pool all of its
  // pages.
  PagePool(int64_t page_bytes, Backend& backend, int64_t capacity = kUnbounded);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Returns a page whose content means nothing yet; null where `capacity` pages are in use.
  Page Take();
  // Returns another page of the same content, or null.
  Page CopyOf(const Page& page);

  int64_t capacity() const { return capacity_; }
  int64_t in_use() const { return static_cast<int64_t>(memory_.size() - free_.size()); }
  size_t page_bytes() const { return page_bytes_; }
  // Gives the memory of pages that nobody holds back to the backend.
  void Trim();

 private:
  const size_t page_bytes_;
  const int64_t capacity_;
  Backend* const backend_;
  std::vector<AlignedBytes> memory_;
  std::vector<std::byte*> free_;
};

// The pages of the same tokens, one of each group; null where a page was given back.
using PageRow = std::vector<PagePool::Page>;

}  // namespace nibble
