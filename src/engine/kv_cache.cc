// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_cache.h"

#include <algorithm>

namespace nibble {

KvCache::KvCache(const KvGroups& groups, Backend& backend)
    : own_(std::make_unique<PagePool>(groups.page_bytes(), backend)),
      pool_(own_.get()),
      backend_(&backend),
      groups_(groups),
      table_(backend.allocator()) {}

KvCache::KvCache(PagePool& pool, const KvGroups& groups, Backend& backend, int64_t most_tokens)
    : pool_(&pool),
      backend_(&backend),
      groups_(groups),
      table_pages_(PagesOf(most_tokens)),
      table_(backend.allocator()) {
  table_.Grow(groups.count() * table_pages_);
}

bool KvCache::TakeRow() {
  PageRow row;
  for (int64_t g = 0; g < groups_.count(); ++g) {
    row.push_back(pool_->Take());
    if (row.back() == nullptr) return false;
  }
  held_.push_back(std::move(row));
  return true;
}

bool KvCache::TryReserve(int64_t count) {
  const size_t had = held_.size(), wanted = static_cast<size_t>(PagesOf(tokens_ + count));
  if (wanted <= had) return true;
  GiveBack();
  try {
    while (held_.size() < wanted && TakeRow()) {
    }
    WriteTables();
  } catch (...) {
    held_.resize(had);  // what is not in the tables is not there
    throw;
  }
  return held_.size() == wanted;
}

void KvCache::Reserve(int64_t count) {
  NIBBLE_CHECK(TryReserve(count), "no room for {} tokens behind {}", count, tokens_);
}

void KvCache::GiveBack() {
  for (int64_t g = 0; g < groups_.count(); ++g) {
    const auto group = static_cast<size_t>(g);
    auto row = static_cast<size_t>(groups_.FirstPage(g, tokens_));
    // Before one that is gone, all are.
    while (row > 0 && held_[row - 1][group] != nullptr) held_[--row][group] = nullptr;
  }
}

void KvCache::Truncate(int64_t tokens) {
  NIBBLE_CHECK(tokens <= tokens_, "{} of {} tokens", tokens, tokens_);
  for (int64_t g = 0; g < groups_.count() && tokens > 0; ++g) {
    const auto first = static_cast<size_t>(groups_.FirstPage(g, tokens));
    if (first < held_.size() && held_[first][static_cast<size_t>(g)] == nullptr) tokens = 0;
  }
  tokens_ = tokens;
  held_.resize(static_cast<size_t>(PagesOf(tokens)));
}

void KvCache::Begin(std::span<const PageRow> rows, int64_t tokens) {
  NIBBLE_CHECK(tokens_ == 0 && held_.empty());
  NIBBLE_CHECK(static_cast<int64_t>(rows.size()) == PagesOf(tokens));
  held_.assign(rows.begin(), rows.end());
  tokens_ = tokens;
  WriteTables();
}

void KvCache::Replace(std::span<const PageRow> rows) {
  NIBBLE_CHECK(rows.size() <= held_.size());
  if (std::ranges::equal(rows, std::span(held_).first(rows.size()))) return;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t g = 0; g < rows[i].size(); ++g) {
      if (held_[i][g] != nullptr && rows[i][g] != nullptr) held_[i][g] = rows[i][g];
    }
  }
  WriteTables();
}

size_t KvCache::bytes() const {
  size_t pages = 0;
  for (const PageRow& row : held_) {
    pages += row.size() - static_cast<size_t>(std::ranges::count(row, nullptr));
  }
  return pages * pool_->page_bytes();
}

void KvCache::WriteTables() {
  const auto count = static_cast<int64_t>(held_.size());
  if (count == 0) return;
  if (table_pages_ < count) {
    const int64_t more = count + count / 2;  // grows by shares, not steps
    table_.Grow(groups_.count() * more);
    table_pages_ = more;
  }
  std::vector<std::byte*> pages(held_.size());
  for (int64_t g = 0; g < groups_.count(); ++g) {
    std::ranges::transform(held_, pages.begin(),
                           [&](const PageRow& row) { return row[static_cast<size_t>(g)].get(); });
    backend_->Write(pages.data(), pages.size() * sizeof(pages[0]),
                    table_.data() + g * table_pages_);
  }
}

}  // namespace nibble
