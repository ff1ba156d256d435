// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_cache.h"

#include <algorithm>

namespace nibble {

KvCache::KvCache(const KvSpec& spec, int64_t layers, Backend& backend)
    : own_(std::make_unique<PagePool>(spec, layers, backend)),
      pool_(own_.get()),
      backend_(&backend),
      table_(backend.allocator()) {}

KvCache::KvCache(PagePool& pool, Backend& backend, int64_t most_tokens)
    : pool_(&pool), backend_(&backend), table_(backend.allocator()) {
  table_.Grow(PagesOf(most_tokens));
}

bool KvCache::TryReserve(int64_t count) {
  const size_t had = held_.size(), wanted = static_cast<size_t>(PagesOf(tokens_ + count));
  if (wanted <= had) return true;
  try {
    while (held_.size() < wanted) {
      PagePool::Page page = pool_->Take();
      if (page == nullptr) break;
      held_.push_back(std::move(page));
    }
    WriteTable();
  } catch (...) {
    held_.resize(had);  // what is not in the table is not there
    throw;
  }
  return held_.size() == wanted;
}

void KvCache::Reserve(int64_t count) {
  NIBBLE_CHECK(TryReserve(count), "no room for {} tokens behind {}", count, tokens_);
}

void KvCache::Truncate(int64_t tokens) {
  NIBBLE_CHECK(tokens <= tokens_, "{} of {} tokens", tokens, tokens_);
  tokens_ = tokens;
  held_.resize(static_cast<size_t>(PagesOf(tokens)));
}

void KvCache::Begin(std::span<const PagePool::Page> pages, int64_t tokens) {
  NIBBLE_CHECK(tokens_ == 0 && held_.empty());
  NIBBLE_CHECK(static_cast<int64_t>(pages.size()) == PagesOf(tokens));
  held_.assign(pages.begin(), pages.end());
  tokens_ = tokens;
  WriteTable();
}

void KvCache::Replace(std::span<const PagePool::Page> pages) {
  NIBBLE_CHECK(pages.size() <= held_.size());
  if (std::ranges::equal(pages, std::span(held_).first(pages.size()))) return;
  std::ranges::copy(pages, held_.begin());
  WriteTable();
}

void KvCache::WriteTable() {
  const size_t count = held_.size();
  if (count == 0) return;
  std::vector<std::byte*> pages;
  pages.reserve(count);
  for (const PagePool::Page& page : held_) pages.push_back(page.get());
  // Grows by shares, not steps.
  if (table_.size() < static_cast<int64_t>(count)) {
    table_.Grow(static_cast<int64_t>(count + count / 2));
  }
  backend_->Write(pages.data(), count * sizeof(pages[0]), table_.data());
}

}  // namespace nibble
