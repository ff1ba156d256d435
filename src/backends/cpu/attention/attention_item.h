// SPDX-License-Identifier: Apache-2.0
// The pieces of work that attention is cut into. A row is one (token, query head); an item is up to
// kBlockRows rows of one sequence and one kv head over some spans of keys, so that a decoded page
// serves many rows. Spans have a fixed length: the order of a row's sums never depends on threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/attention/attention_tiles.h"
#include "backends/cpu/attention/kv_page.h"
#include "compute/backend.h"

namespace nibble::cpu {

inline constexpr int64_t kBlockRows = kTileAttentionRows;
inline constexpr int64_t kSpanPages = 16;
static_assert(kTileAttentionKeys == kPageTokens && kTileAttentionHeadDim == kMaxHeadDim);

struct AttentionCall {
  const float* q;
  const AttentionSpec& attention;
  const KvSpec &kv, &recent;  // of the narrow form and of the recent one
  float* out;
  int64_t group;  // query heads per kv head
};

// A page in one of its forms.
struct PageForm {
  int64_t page;
  bool recent;
  int64_t start() const { return page * kPageTokens; }
};

// Keys [first, last) of a page, 0..64.
struct KeyRange {
  int64_t first, last;
};

// Rows [first, first + rows) of a slice's [tokens, group] rows for one kv head.
struct AttentionItem {
  const AttentionCall* call;
  const SequenceSlice* slice;
  int64_t kv_head, first, rows;
  int64_t first_span, last_span;  // spans [first_span, last_span)
  float* partial;                 // null: the result goes to call->out; else [rows][kPartialStride]

  int64_t position(int64_t row) const { return slice->position + (first + row) / call->group; }
  int64_t end() const { return position(rows - 1) + 1; }  // no row sees a key from here on
  // The offset of a row's vector in q and out.
  int64_t offset(int64_t row) const {
    const int64_t token = slice->first_row + (first + row) / call->group;
    return (token * call->attention.heads + head(row)) * call->kv.head_dim;
  }
  int64_t head(int64_t row) const { return kv_head * call->group + (first + row) % call->group; }
  int64_t FirstKey(int64_t row) const {
    const int64_t window = call->attention.sliding_window;
    return window == 0 ? 0 : std::max<int64_t>(0, position(row) - window + 1);
  }
  bool ReadsRecent(int64_t row, int64_t page) const {
    return call->kv.recent_bits > 0 && nibble::ReadsRecent(position(row), page);
  }
  // True if any of the rows [begin, end) reads the page in this form. A page that is recent for any
  // of them is recent for the first ones.
  bool Reads(int64_t begin, int64_t end, PageForm form) const {
    return ReadsRecent(form.recent ? begin : end - 1, form.page) == form.recent;
  }
  // The keys of a page in this form that rows [begin, end) together see.
  KeyRange Visible(int64_t begin, int64_t end, PageForm form) const {
    if (!Reads(begin, end, form)) return {0, 0};
    return {std::clamp<int64_t>(FirstKey(begin) - form.start(), 0, kPageTokens),
            std::clamp<int64_t>(position(end - 1) + 1 - form.start(), 0, kPageTokens)};
  }
  // The pages of a span that any row sees.
  int64_t FirstPage(int64_t span) const {
    return std::max(span * kSpanPages, FirstKey(0) / kPageTokens);
  }
  int64_t LastPage(int64_t span) const {
    return std::min((span + 1) * kSpanPages, (end() + kPageTokens - 1) / kPageTokens);
  }
  // Calls visit(PageForm) for each page of a span, in each form that any row reads, in the order of
  // pages.
  template <typename Visit>
  void ForPages(int64_t span, const Visit& visit) const {
    for (int64_t page = FirstPage(span); page < LastPage(span); ++page) {
      Prefetch(page + 1, span);
      for (const bool recent : {false, true}) {
        if (Reads(0, rows, {page, recent})) visit(PageForm{page, recent});
      }
    }
  }
  const KvSpec& Cache(PageForm form) const { return form.recent ? call->recent : call->kv; }
  const std::byte* Block(PageForm form) const {
    const std::byte* const page =
        form.recent ? slice->recent_page(form.start()) : slice->page(form.start());
    return page + kv_head * Cache(form).block_bytes();
  }
  // Prefetches page `page`, if the span has it. The hardware prefetches large blocks by itself.
  void Prefetch(int64_t page, int64_t span) const {
    const PageForm form = {page, ReadsRecent(0, page)};
    const int64_t bytes = Cache(form).block_bytes();
    if (page >= LastPage(span) || bytes > (1 << 14)) return;
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(Block(form) + i, 0, 2);
  }
  void PrefetchStart() const {
    Prefetch(FirstPage(first_span), first_span);
    Prefetch(FirstPage(first_span) + 1, first_span);
  }
};

}  // namespace nibble::cpu
