// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/attention/cache_ops.h"

#include <algorithm>
#include <cstring>

#include "backends/cuda/attention/attention.h"
#include "backends/cuda/attention/rope_append.h"
#include "backends/cuda/runtime/cuda_error.h"

namespace nibble::cuda {

namespace {

// The sequences of a table, of those that CacheOps::OnDevice returns.
const SequenceOnDevice* TableAt(const SequenceOnDevice* tables, int64_t table, size_t sequences) {
  return tables + static_cast<size_t>(table) * sequences;
}

}  // namespace

int64_t RecordedContext(std::span<const SequenceSlice> batch) {
  constexpr int64_t kStep = 256;
  int64_t context = 0;
  for (const SequenceSlice& s : batch) context = std::max(context, s.position + s.tokens);
  return (context + kStep - 1) / kStep * kStep;
}

const SequenceOnDevice* CacheOps::OnDevice(std::span<const SequenceSlice> batch,
                                           cudaStream_t stream) {
  std::vector<SequenceOnDevice> sequences;  // of all tables: each layer reads those of its own
  for (int64_t table = 0; table < batch[0].tables; ++table) {
    for (const SequenceSlice& s : batch) {
      NIBBLE_CHECK(s.offset == batch[0].offset && s.table == batch[0].table &&
                       s.tables == batch[0].tables && s.recent_offset == batch[0].recent_offset &&
                       s.recent_table == batch[0].recent_table,
                   "layers differ within a batch");
      sequences.push_back({.first_row = s.first_row,
                           .tokens = s.tokens,
                           .position = s.position,
                           .pages = s.pages + table * s.table_pages});
    }
  }
  const size_t bytes = sequences.size() * sizeof(sequences[0]);
  if (sequences.size() == batch_.size() &&
      std::memcmp(sequences.data(), batch_.data(), bytes) == 0) {
    return batch_on_device_.data();
  }
  batch_ = std::move(sequences);
  CheckCuda(cudaMemcpyAsync(batch_on_device_.Grow(static_cast<int64_t>(batch_.size())),
                            batch_.data(), bytes, cudaMemcpyHostToDevice, stream),
            "copy to the GPU");
  return batch_on_device_.data();
}

void CacheOps::RopeAndAppend(Intermediate* q, Intermediate* k, const Intermediate* v,
                             const AttentionSpec& attention, const RopeView& rope, const KvSpec& kv,
                             std::span<const SequenceSlice> batch, cudaStream_t stream) {
  int64_t rows = 0;
  for (const SequenceSlice& s : batch) {
    NIBBLE_CHECK(s.position + s.tokens <= rope.positions, "{} positions", rope.positions);
    rows = std::max(rows, s.first_row + s.tokens);
  }
  if (rows == 0) return;
  const int64_t k_width = kv.kv_heads * kv.head_dim;
  const SequenceOnDevice* const tables = OnDevice(batch, stream);
  const SequenceSlice& first = batch[0];
  const bool recent = kv.recent_bits > 0;
  RopeAppend({.q = q,
              .k = k,
              .v = v,
              .type = kIntermediate,
              .q_stride = attention.heads * kv.head_dim,
              .k_stride = k_width,
              .v_stride = k_width,
              .heads = static_cast<int>(attention.heads),
              .kv = LayoutOf(kv, batch[0].offset),
              .rotation = kv.rotation.identity() ? HeadRotation{} : RotationOf(kv.rotation),
              .cos = rope.cos,
              .sin = rope.sin,
              .angles = static_cast<int>(rope.angles),
              .q_norm = attention.q_norm,
              .k_norm = attention.k_norm,
              .norm_eps = attention.norm_eps,
              .key_center = attention.key_center,
              .batch = TableAt(tables, first.table, batch.size()),
              .sequences = static_cast<int>(batch.size()),
              .recent = LayoutOf(kv.Recent(), first.recent_offset),
              .recent_batch = recent ? TableAt(tables, first.recent_table, batch.size()) : nullptr,
              .rows = static_cast<int>(rows)},
             stream);
}

void CacheOps::Attention(const Intermediate* q, const AttentionSpec& attention, const KvSpec& kv,
                         std::span<const SequenceSlice> batch, Intermediate* out,
                         cudaStream_t stream) {
  if (batch.empty()) return;
  const SequenceOnDevice* const tables = OnDevice(batch, stream);
  AttentionArguments a = {.q = reinterpret_cast<const __nv_bfloat16*>(q),
                          .out = reinterpret_cast<__nv_bfloat16*>(out),
                          .heads = static_cast<int>(attention.heads),
                          .scale = attention.scale,
                          .sliding_window = static_cast<int>(attention.sliding_window),
                          .softcap = attention.softcap,
                          .sinks = attention.sinks};
  // One new token and many run on kernels of their own: a prompt beside answers must not make
  // prompts of them.
  const auto many = std::ranges::find_if(batch, [](const auto& s) { return s.tokens > 1; });
  const auto answers = static_cast<size_t>(many - batch.begin());
  for (const auto& [first, end] :
       {std::pair(size_t{0}, answers), std::pair(answers, batch.size())}) {
    if (first == end) continue;
    const auto part = batch.subspan(first, end - first);
    const auto pages = [&](int64_t table) { return TableAt(tables, table, batch.size()) + first; };
    a.kv = LayoutOf(kv, batch[0].offset);
    a.batch = pages(batch[0].table);
    if (kv.recent_bits == 0) {
      AttendPart(a, part, stream);
      continue;
    }
    AttentionArguments recent = a;
    recent.form = CacheForm::kRecent;
    recent.kv = LayoutOf(kv.Recent(), batch[0].recent_offset);
    recent.batch = pages(batch[0].recent_table);
    AttendForms(a, recent, part, stream);
  }
}

// The narrow pages, where there may be some, then the recent ones.
void CacheOps::AttendForms(AttentionArguments narrow, AttentionArguments recent,
                           std::span<const SequenceSlice> part, cudaStream_t stream) {
  int64_t rows = 0;
  for (const SequenceSlice& s : part) rows = std::max(rows, s.first_row + s.tokens);
  if (Bounded(narrow, part).max_context > kMaxRecentPages * kPageTokens) {
    rows *= narrow.heads;
    recent.remainder = {remainders_.Grow(rows * narrow.kv.head_dim),
                        reinterpret_cast<float2*>(remainder_ends_.Grow(2 * rows))};
    narrow.form = CacheForm::kNarrow;
    narrow.remainder = recent.remainder;
    AttendPart(narrow, part, stream);
  }
  AttendPart(recent, part, stream);
}

// With the bounds of a part of a batch.
AttentionArguments CacheOps::Bounded(AttentionArguments a, std::span<const SequenceSlice> part) {
  a.sequences = static_cast<int>(part.size());
  for (const SequenceSlice& s : part) {
    a.max_tokens = std::max(a.max_tokens, static_cast<int>(s.tokens));
    a.max_context = std::max(a.max_context, s.position + s.tokens);
  }
  if (a.max_tokens == 1) a.max_context = RecordedContext(part);
  return a;
}

void CacheOps::AttendPart(AttentionArguments a, std::span<const SequenceSlice> part,
                          cudaStream_t stream) {
  a = Bounded(a, part);
  const auto first = static_cast<size_t>(a.batch - batch_on_device_.data());
  const auto sequences = std::span(batch_).subspan(first, part.size());
  if (fused_.Takes(a, sequences)) return fused_.Run(a, sequences, stream);
  const AttentionNeeds needs = NeedsOf(a);
  a.counters = counters_.Grow(needs.counters);
  a.partials = partials_.Grow(needs.partials);
  cuda::Attention(a, stream);
}

}  // namespace nibble::cuda
