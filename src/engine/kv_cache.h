// SPDX-License-Identifier: Apache-2.0
// The paged cache of one sequence: pages of a pool and their tables in the backend's memory. Pages
// that no layer of their group reads any more go back to the pool while the sequence grows.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/kv_groups.h"
#include "engine/page_pool.h"

namespace nibble {

class KvCache {
 public:
  // A cache with a pool of its own, as large as it comes to need.
  KvCache(const KvGroups& groups, Backend& backend);
  // A cache with a pool of its own, for layers that are alike and see the whole text.
  KvCache(const KvSpec& spec, int64_t layers, Backend& backend)
      : KvCache(KvGroups(spec, layers), backend) {}
  // A cache on pages of `pool`, which must outlive this, with tables that never move below
  // `max_tokens`.
  KvCache(PagePool& pool, const KvGroups& groups, Backend& backend, int64_t max_tokens);

  int64_t tokens() const { return tokens_; }
  // Makes room for `count` tokens beyond tokens(). Returns false where the pool has no page left;
  // the pages taken so far stay taken.
  bool TryReserve(int64_t count);
  void Reserve(int64_t count);  // where there is room, as in a pool of its own
  // The last `count` tokens written are now part of the sequence.
  void Advance(int64_t count) { tokens_ += count; }
  // Forgets all but the first `tokens` tokens, or all of them where the window before that place is
  // gone; tokens() says which. Pages of the recent form that are gone are made from the narrow one,
  // so what follows may differ from a text that never was longer.
  void Truncate(int64_t tokens);
  void Clear() { Truncate(0); }

  // An empty cache begins with these pages, of `tokens` tokens. The last ones must be its own if
  // they are not full.
  void Begin(std::span<const PageRow> rows, int64_t tokens);
  std::span<const PageRow> held() const { return held_; }
  // Replaces the first pages by others of the same content, where both are there.
  void Replace(std::span<const PageRow> rows);

  // The next `count` tokens, which begin in this row of a batch; for the layers of group 0.
  SequenceSlice Slice(int64_t first_row, int64_t count) const {
    return {.first_row = first_row,
            .tokens = count,
            .position = tokens_,
            .pages = table_.data(),
            .tables = groups_.count(),
            .table_pages = table_pages_,
            .recent_table = groups_.count() - 1};
  }
  size_t bytes() const;

 private:
  bool TakeRow();
  void GiveBack();
  bool RestoreRecent();
  void Widen(int64_t group, int64_t row);
  void WriteTables();

  std::unique_ptr<PagePool> own_;
  PagePool* pool_;
  Backend* backend_;
  KvGroups groups_;
  int64_t tokens_ = 0;
  std::vector<PageRow> held_;
  int64_t table_pages_ = 0;
  Buffer<std::byte*> table_;  // [groups][table_pages_]
};

}  // namespace nibble
