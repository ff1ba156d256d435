// SPDX-License-Identifier: Apache-2.0
// The paged cache of one sequence: for every layer a table of pages (formats/kv_format.h),
// allocated as the sequence grows and never moved.
#pragma once

#include <vector>

#include "base/aligned.h"
#include "formats/kv_format.h"

namespace nibble {

class KvCache {
 public:
  KvCache(const KvSpec& spec, int64_t layers);

  int64_t tokens() const { return tokens_; }
  // Makes room for `count` tokens beyond tokens().
  void Reserve(int64_t count);
  // The last `count` tokens written are now part of the sequence.
  void Advance(int64_t count) { tokens_ += count; }
  // Forgets everything but keeps the pages.
  void Clear() { tokens_ = 0; }

  std::byte* const* pages(int64_t layer) const {
    return tables_[static_cast<size_t>(layer)].data();
  }
  size_t bytes() const;

 private:
  const KvSpec spec_;
  int64_t tokens_ = 0;
  std::vector<std::vector<std::byte*>> tables_;  // [layers][pages]
  std::vector<AlignedBytes> storage_;
};

}  // namespace nibble
