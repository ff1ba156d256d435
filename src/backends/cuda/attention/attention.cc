// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/attention/attention.h"

#include <algorithm>

#include "backends/cuda/attention/attention_plan.h"

namespace nibble::cuda {
namespace {

constexpr int kUnsplit = 1 << 24;  // pages

int DivideUp(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

struct Kernel {
  bool (*fits)(const AttentionArguments&);
  AttentionPlan (*plan)(const AttentionArguments&);
  void (*launch)(const AttentionCall&, cudaStream_t);
};

constexpr Kernel kKernels[] = {{FitsDecode, DecodePlan, LaunchDecode},
                               {FitsDecodeBf16, DecodeBf16Plan, LaunchDecodeBf16},
                               {FitsPrefill, PrefillPlan, LaunchPrefill},
                               {[](const auto&) { return true; }, LongPlan, LaunchLong}};

const Kernel& KernelOf(const AttentionArguments& a) {
  return *std::ranges::find_if(kKernels, [&](const Kernel& kernel) { return kernel.fits(a); });
}

}  // namespace

AttentionPlan PlanOf(const AttentionArguments& a, int tile_rows, int span_pages) {
  AttentionPlan plan = {.group = a.heads / a.kv.kv_heads, .tile_rows = tile_rows};
  plan.group_inverse = (uint64_t{1} << 32) / static_cast<uint64_t>(plan.group) + 1;
  const int rows = a.rows();
  plan.partial_rows = std::min(rows, tile_rows);
  plan.tiles = DivideUp(rows, tile_rows);
  plan.span_pages = span_pages == 0 ? kUnsplit : span_pages;
  if (span_pages == 0) return plan;
  // A window may begin and end inside a page, and pages inside a span.
  int pages = DivideUp(a.max_context, kPageKeys);
  if (a.form == CacheForm::kRecent) {
    pages = std::min(pages, 1 + kPagesBefore + DivideUp(a.max_tokens, kPageKeys) + 1);
  }
  const int64_t window = a.sliding_window;
  if (window != 0) {
    pages = std::min(pages, DivideUp(window + a.max_tokens, kPageKeys) + span_pages);
  }
  plan.spans = DivideUp(pages, span_pages);
  plan.joints = plan.spans / kJoinSpans + 2;
  return plan;
}

AttentionNeeds NeedsOf(const AttentionArguments& a) {
  const AttentionPlan plan = KernelOf(a).plan(a);
  const int64_t units = int64_t{a.sequences} * plan.tiles * a.kv.kv_heads;
  const int64_t rows = units * plan.slots() * plan.partial_rows;
  return {.counters = units * (1 + plan.joints), .partials = rows * (a.kv.head_dim + 2)};
}

void Attention(const AttentionArguments& a, cudaStream_t stream) {
  const Kernel& kernel = KernelOf(a);
  kernel.launch({a, kernel.plan(a)}, stream);
}

}  // namespace nibble::cuda
