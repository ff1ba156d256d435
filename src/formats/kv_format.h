// SPDX-License-Identifier: Apache-2.0
// Layout of the paged KV cache. A page holds kPageTokens tokens of one layer of one sequence; those
// of a group of layers (engine/kv_groups.h) for the same tokens lie behind each other, so one table
// serves them all:
//
//   page  = [kv_heads] blocks
//   block = K codes [64][row bytes] | K params [64][groups] {fp16 s, fp16 z} | V codes | V params
//
// Every part starts at a multiple of 64 bytes. K is stored after RoPE and after the head rotation.
// A part that is not quantized is bf16 (16 bits) or fp32 (32) [64][head_dim] and has no params.
//
// A cache of few bits may have a recent form with more, for the tokens that attention looks at
// most: a text's first (Xiao et al. 2023, "attention sinks") and last (Liu et al. 2024, KIVI).
// Which form a query reads follows from its position alone (ReadsRecent). Pages of the recent form
// exist only while some query may read them.
#pragma once

#include <algorithm>

#include "formats/format_spec.h"
#include "transforms/hadamard.h"

namespace nibble {

inline constexpr int64_t kPageTokens = 64;
// Every backend takes heads of a multiple of 8 up to this.
inline constexpr int64_t kMaxHeadDim = 512;

struct CacheFormats {
  FormatSpec k, v;
  bool operator==(const CacheFormats&) const = default;
};

// The number of pages before its own that a query reads in the recent form, beside the first page.
inline constexpr int64_t kRecentPages = 1;
inline constexpr int64_t kMaxRecentPages = 1 + kRecentPages + 1;  // pages a query reads
inline bool ReadsRecent(int64_t position, int64_t page) {
  return page == 0 || page + kRecentPages >= position / kPageTokens;
}

struct KvSpec {
  int64_t kv_heads = 0, head_dim = 0;
  FormatSpec k, v;
  TransformSpec rotation;  // of one head, applied to Q and K after RoPE; identity if none
  int recent_bits = 0;     // of K and V in the recent form; 0: there is none

  // The cache of the recent form.
  KvSpec Recent() const {
    KvSpec recent = *this;
    recent.recent_bits = 0;
    for (FormatSpec* format : {&recent.k, &recent.v}) {
      if (format->bits < recent_bits) format->bits = recent_bits, format->clip = 1;
    }
    return recent;
  }

  int64_t row_bytes(const FormatSpec& f) const { return PackedBytes(head_dim, f.bits); }
  int64_t params_per_row(const FormatSpec& f) const {  // uint16 values
    return f.quantized() ? 2 * f.groups(head_dim) : 0;
  }
  // Byte offsets inside a head's block.
  int64_t k_params() const { return Round(kPageTokens * row_bytes(k)); }
  int64_t v_codes() const { return k_params() + Round(kPageTokens * params_per_row(k) * 2); }
  int64_t v_params() const { return v_codes() + Round(kPageTokens * row_bytes(v)); }
  int64_t block_bytes() const { return v_params() + Round(kPageTokens * params_per_row(v) * 2); }
  int64_t page_bytes() const { return kv_heads * block_bytes(); }

 private:
  static int64_t Round(int64_t bytes) { return (bytes + 63) / 64 * 64; }
};

// Bytes of a layer's cache that a query behind `tokens` tokens reads.
inline int64_t BytesRead(const KvSpec& kv, int64_t tokens) {
  const int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
  if (kv.recent_bits == 0) return pages * kv.page_bytes();
  const int64_t recent = std::min(pages, kMaxRecentPages);
  return recent * kv.Recent().page_bytes() + (pages - recent) * kv.page_bytes();
}

}  // namespace nibble
