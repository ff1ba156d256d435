// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "backends/cpu/acts_call.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/parallel_rows.h"
#include "backends/cpu/transform_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/activations.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "backends/cpu/acts_source.inl.h"
#include "backends/cpu/quantize.inl.h"
#include "backends/cpu/transform.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

void QuantizeRow(const float* x, int64_t width, const FormatSpec& format, int64_t stride,
                 const ActRow& out) {
  const int64_t groups = format.groups(width), length = width / groups;
  for (int64_t g = 0; g < groups; ++g) {
    ActivationGroup(x + g * length, length, format, out.codes + g * length, out.scales + g,
                    out.zetas + g, out.sums + g);
  }
  std::memset(out.codes + width, 0, static_cast<size_t>(stride - width));
}

// Rows [begin, end) of the call, up to the quantizer in this thread's cache.
void PrepareRows(const ActsCall& call, int64_t begin, int64_t end) {
  const InputSpec& spec = call.spec;
  const int64_t width = spec.width, groups = spec.activation.groups(width);
  const int64_t step = call.plan == nullptr ? 1 : call.plan->row_group;
  for (int64_t row = begin; row < end; row += step) {
    const int64_t rows = HWY_MIN(step, end - row);
    float* values = call.values != nullptr ? call.values + row * width
                                           : ThreadScratch(Scratch::kRow, step * width);
    for (int64_t r = 0; r < rows; ++r) LoadRow(call.source, row + r, width, values + r * width);
    if (call.plan != nullptr) TransformGroup(*call.plan, values, rows);
    for (int64_t t = row; call.values == nullptr && t < row + rows; ++t) {
      int8_t* codes = call.work.codes.data() + t * call.stride;
      QuantizeRow(values + (t - row) * width, width, spec.activation, call.stride,
                  {.codes = codes,
                   .scales = call.work.scales.data() + t * groups,
                   .zetas = call.work.zetas.data() + t * groups,
                   .sums = call.work.sums.data() + t * groups});
      if (call.tiles) StoreTileRow(codes, t, call.stride, call.work.tiles.data());
    }
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

void PrepareAll(const ActsCall& call, int64_t tokens) {
  const TransformPlan* plan = call.plan;
  const int64_t op = call.source.op == ActsSource::Op::kSiluMul ? 8 : 4;
  const int64_t cost = (op + 4) * call.spec.width + (plan == nullptr ? 0 : plan->row_cost);
  const int64_t unit = plan == nullptr ? 1 : plan->row_group;
  ParallelRows(tokens, cost, unit, [&call](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(PrepareRows)(call, begin, end);
  });
}

}  // namespace

Activations PrepareActs(const ActsSource& source, int64_t tokens, const InputSpec& spec, bool tiles,
                        ActsWorkspace& work) {
  const TransformPlan* plan = spec.transform.identity() ? nullptr : &PlanFor(spec.transform);
  NIBBLE_CHECK(plan == nullptr || spec.transform.width() == spec.width, "transform of {} on {}",
               spec.transform.width(), spec.width);
  ActsCall call{.source = source, .spec = spec, .plan = plan, .work = work};
  if (!spec.activation.quantized()) {
    Activations acts{.tokens = tokens, .spec = &spec, .values = source.x};
    if (plan == nullptr && source.op == ActsSource::Op::kCopy) return acts;
    acts.values = call.values = work.values.Grow(tokens * spec.width);
    PrepareAll(call, tokens);
    return acts;
  }
  call.stride = (spec.width + 63) / 64 * 64;
  call.tiles = tiles;
  const int64_t groups = spec.activation.groups(spec.width);
  work.codes.Grow(tokens * call.stride);
  if (tiles) work.tiles.Grow((tokens + kTileTokens - 1) / kTileTokens * kTileTokens * call.stride);
  work.scales.Grow(tokens * groups);
  work.zetas.Grow(tokens * groups);
  work.sums.Grow(tokens * groups);
  PrepareAll(call, tokens);
  return {.tokens = tokens,
          .spec = &spec,
          .values = nullptr,
          .stride = call.stride,
          .codes = work.codes.data(),
          .tiles = tiles ? work.tiles.data() : nullptr,
          .scales = work.scales.data(),
          .zetas = spec.activation.symmetric ? nullptr : work.zetas.data(),
          .sums = work.sums.data()};
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
