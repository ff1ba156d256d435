// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_cache.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

// Writes the codes of one part with more bits; the same params say what they mean.
void WidenPart(int64_t head_dim, const FormatSpec& from_format, const std::byte* from,
               const FormatSpec& to_format, std::byte* to) {
  if (from_format.bits == to_format.bits) {
    std::memcpy(to, from, static_cast<size_t>(kPageTokens * PackedBytes(head_dim, to_format.bits)));
    return;
  }
  const int64_t count = kPageTokens * head_dim;  // rows are whole bytes: one behind the other
  std::vector<int16_t> wide(static_cast<size_t>(count));
  UnpackCodes(reinterpret_cast<const uint8_t*>(from), count, from_format.bits, false, wide.data());
  const std::vector<int8_t> codes(wide.begin(), wide.end());
  PackCodes(codes.data(), count, to_format.bits, reinterpret_cast<uint8_t*>(to));
}

// Widens a layer's part of a page.
void WidenPage(const KvSpec& spec, const std::byte* from, std::byte* to) {
  const KvSpec recent = spec.Recent();
  const auto copy_params = [&](const FormatSpec& format, int64_t source, int64_t target) {
    std::memcpy(to + target, from + source,
                static_cast<size_t>(kPageTokens * spec.params_per_row(format) * 2));
  };
  for (int64_t h = 0; h < spec.kv_heads; ++h) {
    WidenPart(spec.head_dim, spec.k, from, recent.k, to);
    copy_params(spec.k, spec.k_params(), recent.k_params());
    WidenPart(spec.head_dim, spec.v, from + spec.v_codes(), recent.v, to + recent.v_codes());
    copy_params(spec.v, spec.v_params(), recent.v_params());
    from += spec.block_bytes(), to += recent.block_bytes();
  }
}

}  // namespace

KvCache::KvCache(const KvGroups& groups, Backend& backend)
    : own_(std::make_unique<PagePool>(groups.page_bytes(), backend)),
      pool_(own_.get()),
      backend_(&backend),
      groups_(groups),
      table_(backend.allocator()) {}

KvCache::KvCache(PagePool& pool, const KvGroups& groups, Backend& backend, int64_t max_tokens)
    : pool_(&pool),
      backend_(&backend),
      groups_(groups),
      table_pages_(PagesOf(max_tokens)),
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
    const auto kept = static_cast<size_t>(groups_.kept_pages(g));
    auto row = static_cast<size_t>(groups_.FirstPage(g, tokens_));
    // Before a page that is gone all pages are gone, but for those that are kept.
    while (row > kept && held_[row - 1][group] != nullptr) held_[--row][group] = nullptr;
  }
}

// Makes the pages of the recent form that the next tokens read. Returns false where the pool has
// none left.
bool KvCache::RestoreRecent() {
  bool changed = false;
  for (int64_t g = 0; g < groups_.count(); ++g) {
    if (!groups_.recent(g)) continue;
    for (int64_t row = 0; row < std::ssize(held_); ++row) {
      PagePool::Page& page = held_[static_cast<size_t>(row)][static_cast<size_t>(g)];
      if (page != nullptr || !groups_.Reads(g, row, tokens_)) continue;
      page = pool_->Take();
      if (page == nullptr) return false;
      Widen(g, row);
      changed = true;
    }
  }
  if (changed) WriteTables();
  return true;
}

// Fills a page of the recent form with the codes of the narrow one, which have the same meaning
// there.
void KvCache::Widen(int64_t group, int64_t row) {
  const auto& pages = held_[static_cast<size_t>(row)];
  const size_t bytes = pool_->page_bytes();
  std::vector<std::byte> recent(bytes);
  for (int64_t from = 0; from < groups_.count(); ++from) {
    const std::byte* const page = pages[static_cast<size_t>(from)].get();
    if (groups_.recent(from) || page == nullptr) continue;  // outside of its layers' window
    const auto* narrow = reinterpret_cast<const std::byte*>(backend_->Read(
        reinterpret_cast<const float*>(page), static_cast<int64_t>(bytes / sizeof(float))));
    for (int64_t layer = 0; layer < groups_.layers(); ++layer) {
      const KvSpec& spec = groups_.cache(layer);
      if (spec.recent_bits == 0 || groups_.recent_place(layer).group != group) continue;
      const auto [of, offset] = groups_.place(layer);
      if (of != from) continue;
      WidenPage(spec, narrow + offset, recent.data() + groups_.recent_place(layer).offset);
    }
  }
  backend_->Write(recent.data(), bytes, pages[static_cast<size_t>(group)].get());
}

void KvCache::Truncate(int64_t tokens) {
  NIBBLE_CHECK(tokens <= tokens_, "{} of {} tokens", tokens, tokens_);
  for (int64_t g = 0; g < groups_.count() && tokens > 0; ++g) {
    if (groups_.recent(g)) continue;
    const auto first = static_cast<size_t>(groups_.FirstPage(g, tokens));
    if (first < held_.size() && held_[first][static_cast<size_t>(g)] == nullptr) tokens = 0;
  }
  tokens_ = tokens;
  held_.resize(static_cast<size_t>(PagesOf(tokens)));
  if (!RestoreRecent()) tokens_ = 0, held_.clear();
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
