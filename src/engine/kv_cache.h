// SPDX-License-Identifier: Apache-2.0
// The paged cache of one sequence: pages of a pool and their table in the backend's memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/page_pool.h"

namespace nibble {

class KvCache {
 public:
  // With a pool of its own, as large as it comes to need.
  KvCache(const KvSpec& spec, int64_t layers, Backend& backend);
  // On pages of `pool`, which must outlive this, with a table that never moves below `most_tokens`.
  KvCache(PagePool& pool, Backend& backend, int64_t most_tokens);

  int64_t tokens() const { return tokens_; }
  // Makes room for `count` tokens beyond tokens(). False where the pool has no page left; what it
  // had stays taken.
  bool TryReserve(int64_t count);
  void Reserve(int64_t count);  // where there is room, as in a pool of its own
  // The last `count` tokens written are now part of the sequence.
  void Advance(int64_t count) { tokens_ += count; }
  // Forgets all but the first `tokens` tokens: the sequence goes on from there.
  void Truncate(int64_t tokens);
  void Clear() { Truncate(0); }

  // An empty cache begins with these pages, of `tokens` tokens. The last one must be its own if it
  // is not full.
  void Begin(std::span<const PagePool::Page> pages, int64_t tokens);
  std::span<const PagePool::Page> held() const { return held_; }
  // Others of the same content take the place of its first pages.
  void Replace(std::span<const PagePool::Page> pages);

  // The page table, in the backend's memory.
  std::byte* const* pages() const { return table_.data(); }
  size_t bytes() const { return held_.size() * pool_->page_bytes(); }

 private:
  void WriteTable();

  std::unique_ptr<PagePool> own_;
  PagePool* pool_;
  Backend* backend_;
  int64_t tokens_ = 0;
  std::vector<PagePool::Page> held_;
  Buffer<std::byte*> table_;
};

}  // namespace nibble
