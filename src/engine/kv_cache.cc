// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_cache.h"

namespace nibble {

KvCache::KvCache(const KvSpec& spec, int64_t layers, Backend& backend)
    : spec_(spec), layers_(layers), backend_(&backend), table_(backend.allocator()) {}

void KvCache::Reserve(int64_t count) {
  const auto wanted = static_cast<size_t>((tokens_ + count + kPageTokens - 1) / kPageTokens);
  if (wanted <= storage_.size()) return;
  while (storage_.size() < wanted) {
    storage_.push_back(backend_->Allocate(static_cast<size_t>(layers_ * spec_.page_bytes())));
  }
  std::vector<std::byte*> pages;
  for (const AlignedBytes& page : storage_) pages.push_back(page.get());
  const auto capacity = static_cast<int64_t>(wanted + wanted / 2);  // grows by shares, not steps
  if (table_.size() < static_cast<int64_t>(wanted)) table_.Grow(capacity);
  backend_->Write(pages.data(), pages.size() * sizeof(pages[0]), table_.data());
}

size_t KvCache::bytes() const {
  return storage_.size() * static_cast<size_t>(layers_ * spec_.page_bytes());
}

}  // namespace nibble
