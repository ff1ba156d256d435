// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_cache.h"

namespace nibble {

KvCache::KvCache(const KvSpec& spec, int64_t layers)
    : spec_(spec), tables_(static_cast<size_t>(layers)) {}

void KvCache::Reserve(int64_t count) {
  const size_t wanted = static_cast<size_t>((tokens_ + count + kPageTokens - 1) / kPageTokens);
  for (auto& table : tables_) {
    while (table.size() < wanted) {
      storage_.push_back(MakeAlignedBytes(static_cast<size_t>(spec_.page_bytes())));
      table.push_back(storage_.back().get());
    }
  }
}

size_t KvCache::bytes() const {
  return storage_.size() * static_cast<size_t>(spec_.page_bytes());
}

}  // namespace nibble
