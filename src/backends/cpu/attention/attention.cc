// SPDX-License-Identifier: Apache-2.0
// Blocked attention with an online softmax (Milakov and Gimelshein 2018; Dao et al.,
// FlashAttention, 2022) over the quantized cache, one algorithm for prefill and decode: in fp32
// vectors (attention_vector.inl.h), or with AMX and a quantized cache on matrix tiles
// (attention_tiles.h).
//
// A row's bits depend on its own keys alone. Masked scores lie below the value m starts from, so a
// page that a row does not see leaves its m, l and O as they were. Every span of kSpanPages starts
// afresh and joins in ascending order, so threads may share spans ("Flash-Decoding", Dao et al.
// 2023).
#include "backends/cpu/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>
#include <vector>

#include "backends/cpu/attention/attention_item.h"
#include "backends/cpu/common/dispatch.h"
#include "backends/cpu/common/workspace.h"
#include "base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attention/attention.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "backends/cpu/attention/attention_vector.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

// Keys of a page as the tiles want them: dwords of 4- or 8-bit codes, keys in lanes.
void LoadKeys(const KvPart& part, int64_t tokens, KvScratch& scratch) {
  DecodeParams(part, tokens, scratch);
  const bool nibbles = part.format->bits == 4;
  const auto* codes =
      nibbles ? part.codes : reinterpret_cast<const std::byte*>(CodeBytes(part, tokens, scratch));
  TransposeDwords(codes, static_cast<size_t>(nibbles ? part.row_bytes : part.head_dim), tokens,
                  part.head_dim / (nibbles ? 8 : 4), scratch.dwords);
}

struct TileWorkspace {
  AttentionTiles tiles;
  KvScratch keys, values;
  int64_t position[kBlockRows];
  int32_t first[kBlockRows], last[kBlockRows];
};

void TilePage(const AttentionItem& item, PageForm form, TileWorkspace& work) {
  const KvSpec& kv = item.Cache(form);
  const int64_t tokens = std::min(kPageTokens, item.end() - form.start());
  const std::byte* block = item.Block(form);
  const KvPart k = KeysOf(kv, block), v = ValuesOf(kv, block);
  const int64_t window = item.call->attention.sliding_window;
  const bool forms = item.call->kv.recent_bits > 0;
  for (int64_t r = 0; r < item.rows; ++r) {  // as item.Visible, without its divisions
    const int64_t position = work.position[r], last = position + 1 - form.start();
    const bool reads = !forms || nibble::ReadsRecent(position, form.page) == form.recent;
    work.last[r] = reads ? static_cast<int32_t>(std::clamp<int64_t>(last, 0, kPageTokens)) : 0;
    work.first[r] =
        static_cast<int32_t>(window == 0 ? 0 : std::clamp<int64_t>(last - window, 0, kPageTokens));
  }
  LoadKeys(k, tokens, work.keys);
  const bool nibbles = v.format->bits == 4;
  const uint8_t* v_codes =
      nibbles ? reinterpret_cast<const uint8_t*>(v.codes) : CodeBytes(v, tokens, work.values);
  DecodeParams(v, tokens, work.values);
  amx_attention_page({.k_dwords = work.keys.dwords,
                      .v_codes = v_codes,
                      .k_bits = k.format->bits == 4 ? 4 : 8,
                      .v_bits = nibbles ? 4 : 8,
                      .k_middle = 1 << (k.format->bits - 1),
                      .v_middle = 1 << (v.format->bits - 1),
                      .k_scales = work.keys.scales,
                      .k_zeros = work.keys.zeros,
                      .v_scales = work.values.scales,
                      .v_zeros = work.values.zeros,
                      .tokens = tokens,
                      .first = work.first,
                      .last = work.last},
                     work.tiles);
}

void TileSpan(const AttentionItem& item, int64_t span, TileWorkspace& work, float* results) {
  const AttentionCall& call = *item.call;
  work.tiles.rows = item.rows;
  work.tiles.head_dim = call.kv.head_dim;
  const float factor = call.attention.scale * std::numbers::log2e_v<float>;
  for (int64_t r = 0; r < item.rows; ++r) {
    work.position[r] = item.position(r);
    amx_attention_load(call.q + item.offset(r), factor, r, work.tiles);
  }
  item.ForPages(span, [&](PageForm form) { TilePage(item, form, work); });
  for (int64_t r = 0; r < item.rows; ++r) {
    amx_attention_finish(work.tiles, r, results + r * kPartialStride);
  }
}

// total <- total and the keys of `part`, which come after them.
void MergeRow(const float* part, int64_t head_dim, float* total) {
  const hn::FixedTag<float, 8> d;
  const float max = std::max(total[kPartialMax], part[kPartialMax]);
  const DF lanes;
  const auto factor = [&](float m) HWY_ATTR { return hn::GetLane(Exp2(hn::Set(lanes, m - max))); };
  const float old_factor = factor(total[kPartialMax]), new_factor = factor(part[kPartialMax]);
  for (int64_t i = 0; i < head_dim; i += 8) {
    const auto old_o = hn::Mul(hn::LoadU(d, total + i), hn::Set(d, old_factor));
    const auto new_o = hn::Mul(hn::LoadU(d, part + i), hn::Set(d, new_factor));
    hn::StoreU(hn::Add(old_o, new_o), d, total + i);
  }
  total[kPartialSum] = total[kPartialSum] * old_factor + part[kPartialSum] * new_factor;
  total[kPartialMax] = max;
}

// out = O / l. Adding 0 turns -0 into 0: the sign of a zero alone may depend on skipped keys. The
// head's sink, if there is one, is a last key whose value is 0.
void DivideRow(const float* total, int64_t head_dim, const float* sink, float* out) {
  const hn::FixedTag<float, 8> d;
  float weights = total[kPartialSum];
  if (sink != nullptr) {
    weights += std::exp2(*sink * std::numbers::log2e_v<float> - total[kPartialMax]);
  }
  const auto sum = hn::Set(d, weights);
  for (int64_t i = 0; i < head_dim; i += 8) {
    hn::StoreU(hn::Add(hn::Div(hn::LoadU(d, total + i), sum), hn::Zero(d)), d, out + i);
  }
}

void MergeRows(const AttentionItem& item, const float* parts, float* totals) {
  for (int64_t r = 0; r < item.rows; ++r) {
    MergeRow(parts + r * kPartialStride, item.call->kv.head_dim, totals + r * kPartialStride);
  }
}

void StoreRows(const AttentionItem& item, const float* totals) {
  for (int64_t r = 0; r < item.rows; ++r) {
    const float* const sinks = item.call->attention.sinks;
    DivideRow(totals + r * kPartialStride, item.call->kv.head_dim,
              sinks == nullptr ? nullptr : sinks + item.head(r), item.call->out + item.offset(r));
  }
}

template <typename Workspace>
struct ItemWorkspace {
  Workspace span;
  alignas(64) float totals[kBlockRows * kPartialStride];
  alignas(64) float parts[kBlockRows * kPartialStride];
};

template <auto kRunSpan, typename Workspace>
void RunSpans(const AttentionItem& item) {
  static thread_local const auto memory = MakeWorkspace<ItemWorkspace<Workspace>>();
  ItemWorkspace<Workspace>* const work = memory.get();
  float* totals = item.partial != nullptr ? item.partial : work->totals;
  kRunSpan(item, item.first_span, work->span, totals);
  for (int64_t span = item.first_span + 1; span < item.last_span; ++span) {
    kRunSpan(item, span, work->span, work->parts);
    MergeRows(item, work->parts, totals);
  }
  if (item.partial == nullptr) StoreRows(item, totals);
}

void RunItem(const AttentionItem& item, bool tiles) {
  if (tiles) {
    RunSpans<TileSpan, TileWorkspace>(item);
  } else {
    RunSpans<VectorSpan, VectorWorkspace>(item);
  }
}

// `parts` of all spans, one behind the other; the first takes up the others.
void JoinSpans(const AttentionItem& item, float* parts) {
  for (int64_t span = 1; span < item.last_span - item.first_span; ++span) {
    MergeRows(item, parts + span * item.rows * kPartialStride, parts);
  }
  StoreRows(item, parts);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {
HWY_EXPORT(RunItem);
HWY_EXPORT(JoinSpans);

namespace {

// Matrix tiles take caches whose codes share a scale per head, and scores as they are.
bool FitsTiles(const AttentionSpec& attention, const KvSpec& kv) {
  const auto fits = [&](const FormatSpec& f) {
    return f.quantized() && f.groups(kv.head_dim) == 1;
  };
  return fits(kv.k) && fits(kv.v) && kv.head_dim % 32 == 0 && attention.softcap == 0;
}

void MakeItems(const AttentionCall& call, std::span<const SequenceSlice> batch,
               std::vector<AttentionItem>& items) {
  items.clear();
  for (const SequenceSlice& slice : batch) {
    const int64_t rows = slice.tokens * call.group;
    for (int64_t first = 0; first < rows; first += kBlockRows) {
      for (int64_t head = 0; head < call.kv.kv_heads; ++head) {
        AttentionItem item{.call = &call,
                           .slice = &slice,
                           .kv_head = head,
                           .first = first,
                           .rows = std::min(kBlockRows, rows - first)};
        item.first_span = item.FirstKey(0) / (kSpanPages * kPageTokens);
        item.last_span = (item.end() - 1) / (kSpanPages * kPageTokens) + 1;
        items.push_back(item);
      }
    }
  }
}

// Items of few rows go several to a task: they take so little time that the pages of the next one
// must be on their way meanwhile.
void RunItems(Isa isa, const std::vector<AttentionItem>& items, bool tiles) {
  const bool light = !items.empty() && items[0].rows <= 16;
  const size_t share = items.size() / static_cast<size_t>(4 * Threads());
  const size_t count = light ? std::clamp<size_t>(share, 1, 8) : 1;  // of a task
  ParallelFor((items.size() + count - 1) / count, [&](size_t task) {
    const size_t end = std::min(items.size(), (task + 1) * count);
    for (size_t i = task * count; i < end; ++i) {
      if (i + 1 < end) items[i + 1].PrefetchStart();
      NIBBLE_DISPATCH(isa, RunItem)(items[i], tiles);
    }
  });
}

// Few rows with long contexts: every span becomes an item of its own.
void RunSplit(Isa isa, const std::vector<AttentionItem>& items, bool tiles) {
  static thread_local std::vector<AttentionItem> thread_pieces;
  static thread_local std::vector<float> partials;
  std::vector<AttentionItem>& pieces = thread_pieces;
  pieces.clear();
  size_t size = 0;
  for (const AttentionItem& item : items) {
    size += static_cast<size_t>((item.last_span - item.first_span) * item.rows * kPartialStride);
  }
  if (partials.size() < size) partials.resize(size);
  float* part = partials.data();
  for (const AttentionItem& item : items) {
    for (int64_t span = item.first_span; span < item.last_span; ++span) {
      pieces.push_back(item);
      pieces.back().first_span = span;
      pieces.back().last_span = span + 1;
      pieces.back().partial = part;
      part += item.rows * kPartialStride;
    }
  }
  RunItems(isa, pieces, tiles);
  part = partials.data();
  for (const AttentionItem& item : items) {
    NIBBLE_DISPATCH(isa, JoinSpans)(item, part);
    part += (item.last_span - item.first_span) * item.rows * kPartialStride;
  }
}

}  // namespace

void Attention(Isa isa, const float* q, const AttentionSpec& attention, const KvSpec& kv,
               std::span<const SequenceSlice> batch, float* out) {
  NIBBLE_CHECK(kv.head_dim % 8 == 0 && kv.head_dim <= kMaxHeadDim, "head_dim {}", kv.head_dim);
  NIBBLE_CHECK(attention.heads % kv.kv_heads == 0, "{} / {} heads", attention.heads, kv.kv_heads);
  const KvSpec recent = kv.Recent();
  const AttentionCall call{.q = q,
                           .attention = attention,
                           .kv = kv,
                           .recent = recent,
                           .out = out,
                           .group = attention.heads / kv.kv_heads};
  static thread_local std::vector<AttentionItem> thread_items;
  std::vector<AttentionItem>& items = thread_items;
  MakeItems(call, batch, items);
  const bool tiles = isa >= Isa::kAmx && FitsTiles(attention, kv);
  const bool few = items.size() < static_cast<size_t>(2 * Threads());
  const bool spans = std::any_of(items.begin(), items.end(), [](const AttentionItem& item) {
    return item.last_span - item.first_span > 1;
  });
  if (few && spans) return RunSplit(isa, items, tiles);
  // The longest first, so that no thread is left alone with one at the end; the heads of a sequence
  // together.
  std::sort(items.begin(), items.end(), [](const AttentionItem& a, const AttentionItem& b) {
    return std::tuple(b.end(), a.slice, a.first, a.kv_head) <
           std::tuple(a.end(), b.slice, b.first, b.kv_head);
  });
  RunItems(isa, items, tiles);
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
