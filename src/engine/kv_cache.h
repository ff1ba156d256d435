// SPDX-License-Identifier: Apache-2.0
// The paged cache of one sequence (formats/kv_format.h) in a backend's memory, allocated as the
// sequence grows and never moved.
#pragma once

#include <vector>

#include "backends/interface/backend.h"

namespace nibble {

class KvCache {
 public:
  KvCache(const KvSpec& spec, int64_t layers, Backend& backend);

  int64_t tokens() const { return tokens_; }
  // Makes room for `count` tokens beyond tokens().
  void Reserve(int64_t count);
  // The last `count` tokens written are now part of the sequence.
  void Advance(int64_t count) { tokens_ += count; }
  // Forgets all but the first `tokens` tokens and keeps the pages: the sequence goes on from there.
  void Truncate(int64_t tokens) {
    NIBBLE_CHECK(tokens <= tokens_, "{} of {} tokens", tokens, tokens_);
    tokens_ = tokens;
  }
  void Clear() { Truncate(0); }

  // The page table, in the backend's memory.
  std::byte* const* pages() const { return table_.data(); }
  size_t bytes() const;

 private:
  const KvSpec spec_;
  const int64_t layers_;
  Backend* backend_;
  int64_t tokens_ = 0;
  std::vector<AlignedBytes> storage_;  // [pages], each of all layers
  Buffer<std::byte*> table_;
};

}  // namespace nibble
