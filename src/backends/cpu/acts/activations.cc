// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/acts/activations.h"

#include <cstring>

#include "backends/cpu/acts/acts_call.h"
#include "backends/cpu/acts/transform_plan.h"
#include "backends/cpu/common/dispatch.h"
#include "backends/cpu/common/parallel_rows.h"
#include "backends/cpu/gemm/gemm_int.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/acts/activations.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "backends/cpu/acts/acts_source.inl.h"
#include "backends/cpu/acts/quantize.inl.h"
#include "backends/cpu/acts/transform.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

void QuantizeRow(const float* x, int64_t width, const FormatSpec& format, int64_t stride,
                 const ActRow& out) {
  const int64_t groups = format.groups(width), length = width / groups;
  for (int64_t g = 0; g < groups; ++g) {
    ActivationGroup(x + g * length, length, format, out.codes + g * length, out.scales + g,
                    out.zero_offsets + g, out.sums + g);
  }
  std::memset(out.codes + width, 0, static_cast<size_t>(stride - width));
}

// `row` is the part's piece of a prepared row.
void StorePart(const ActsPart& part, const float* row, int64_t token) {
  if (part.values != nullptr) {
    std::memcpy(part.values + token * part.width, row,
                static_cast<size_t>(part.width) * sizeof(float));
    return;
  }
  const int64_t groups = part.format.groups(part.width);
  int8_t* codes = part.memory->codes.data() + token * part.stride;
  QuantizeRow(row, part.width, part.format, part.stride,
              {.codes = codes,
               .scales = part.memory->scales.data() + token * groups,
               .zero_offsets = part.memory->zero_offsets.data() + token * groups,
               .sums = part.memory->sums.data() + token * groups});
  if (part.tiles) StoreTileRow(codes, token, part.stride, part.memory->tiles.data());
}

void StoreRow(const ActsCall& call, const float* row, int64_t token) {
  const std::vector<int32_t>& gather = call.spec.gather;
  if (!gather.empty()) {
    float* gathered = ThreadScratch(Scratch::kGathered, call.spec.width);
    for (size_t i = 0; i < gather.size(); ++i) gathered[i] = row[gather[i]];
    row = gathered;
  }
  StorePart(call.main, row, token);
  if (call.tail.width > 0) StorePart(call.tail, row + call.tail.first, token);
}

// Rows [begin, end) of the call, up to the quantizer in this thread's cache.
void PrepareRows(const ActsCall& call, int64_t begin, int64_t end) {
  const int64_t width = call.spec.width;
  const int64_t step = call.plan == nullptr ? 1 : call.plan->row_group;
  const bool halves = call.plan != nullptr && call.spec.transform_bits == 16;
  for (int64_t row = begin; row < end; row += step) {
    const int64_t rows = HWY_MIN(step, end - row);
    float* values = call.in_place() ? call.main.values + row * width
                                    : ThreadScratch(Scratch::kRow, step * width);
    for (int64_t r = 0; r < rows; ++r) {
      LoadRow(call.source, row + r, width, values + r * width);
      const std::vector<float>& scales = call.spec.scales;
      for (size_t i = 0; i < scales.size(); ++i) values[r * width + i] *= scales[i];
    }
    if (halves) RoundToHalfPrecision(values, rows * width);
    if (call.plan != nullptr) TransformGroup(*call.plan, values, rows);
    if (halves) RoundToHalfPrecision(values, rows * width);
    if (call.in_place()) continue;
    for (int64_t r = 0; r < rows; ++r) StoreRow(call, values + r * width, row + r);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {
namespace {

HWY_EXPORT(PrepareRows);

void PrepareAll(Isa isa, const ActsCall& call, int64_t tokens) {
  const TransformPlan* plan = call.plan;
  const int64_t op = call.source.op == ActsSource::Op::kGated ? 8 : 4;
  const int64_t cost = (op + 4) * call.spec.width + (plan == nullptr ? 0 : plan->row_cost);
  const int64_t unit = plan == nullptr ? 1 : plan->row_group;
  ParallelRows(tokens, cost, unit, [isa, &call](int64_t begin, int64_t end) {
    NIBBLE_DISPATCH(isa, PrepareRows)(call, begin, end);
  });
}

// Grows the part's memory and sets the pointers to its result.
Activations Place(ActsPart& part, int64_t tokens) {
  ActsMemory& memory = *part.memory;
  Activations acts = {.tokens = tokens, .width = part.width, .format = part.format};
  if (!part.format.quantized()) {
    acts.values = part.values = memory.values.Grow(tokens * part.width);
    return acts;
  }
  const int64_t rows = tokens * part.format.groups(part.width);
  acts.stride = part.stride = (part.width + 63) / 64 * 64;
  acts.codes = memory.codes.Grow(tokens * part.stride);
  if (part.tiles) {
    const int64_t tile_rows = (tokens + kTileTokens - 1) / kTileTokens * kTileTokens;
    acts.tiles = memory.tiles.Grow(tile_rows * part.stride);
  }
  acts.scales = memory.scales.Grow(rows);
  const float* zero_offsets = memory.zero_offsets.Grow(rows);
  acts.zero_offsets = part.format.symmetric ? nullptr : zero_offsets;
  acts.sums = memory.sums.Grow(rows);
  return acts;
}

}  // namespace

Activations PrepareActs(Isa isa, const ActsSource& source, int64_t tokens, const InputSpec& spec,
                        bool tiles, ActsWorkspace& work) {
  const TransformPlan* plan = spec.transform.identity() ? nullptr : &PlanFor(spec.transform, isa);
  NIBBLE_CHECK(plan == nullptr || spec.transform.width() == spec.width, "transform of {} on {}",
               spec.transform.width(), spec.width);
  const bool as_it_is = plan == nullptr && source.rows() != nullptr && spec.scales.empty() &&
                        spec.gather.empty() && spec.tail_width == 0;
  if (as_it_is && !spec.activations.quantized()) {
    return {
        .tokens = tokens, .width = spec.width, .format = spec.activations, .values = source.rows()};
  }
  ActsCall call = {.source = source,
                   .spec = spec,
                   .plan = plan,
                   .main = {.width = spec.main_width(),
                            .format = spec.activations,
                            .memory = &work.main,
                            .tiles = tiles},
                   .tail = {.first = spec.main_width(),
                            .width = spec.tail_width,
                            .format = spec.tail_activations,
                            .memory = &work.tail,
                            .tiles = tiles}};
  Activations acts = Place(call.main, tokens);
  if (spec.tail_width > 0) {
    work.tail_acts = Place(call.tail, tokens);
    acts.tail = &work.tail_acts;
  }
  PrepareAll(isa, call, tokens);
  return acts;
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
