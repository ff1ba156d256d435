// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "backends/cpu/ops.h"
#include "backends/cpu/parallel_rows.h"
#include "backends/cpu/transform_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/activations.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "backends/cpu/quantize.inl.h"
#include "backends/cpu/transform.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

void TransformCopy(const TransformPlan& plan, const float* x, int64_t rows, float* out) {
  const int64_t width = plan.spec.width();
  for (int64_t row = 0; row < rows; row += plan.row_group) {
    const int64_t group = HWY_MIN(plan.row_group, rows - row);
    float* own = out + row * width;
    std::memcpy(own, x + row * width, static_cast<size_t>(group * width) * sizeof(float));
    TransformGroup(plan, own, group);
  }
}

void QuantizeRow(const float* x, int64_t width, const FormatSpec& format, int64_t stride,
                 const ActRow& out) {
  const int64_t groups = format.groups(width), length = width / groups;
  for (int64_t g = 0; g < groups; ++g) {
    ActivationGroup(x + g * length, length, format, out.codes + g * length, out.scales + g,
                    out.zetas + g, out.sums + g);
  }
  std::memset(out.codes + width, 0, static_cast<size_t>(stride - width));
}

// Rows [begin, end) of the call. The transformed rows stay in this thread's cache.
void PrepareRows(const float* x, const TransformPlan* plan, const InputSpec& spec, int64_t stride,
                 int64_t begin, int64_t end, bool tiles, ActsWorkspace& work) {
  const int64_t width = spec.width, groups = spec.activation.groups(width);
  const int64_t step = plan == nullptr ? 1 : plan->row_group;
  for (int64_t row = begin; row < end; row += step) {
    const int64_t rows = HWY_MIN(step, end - row);
    const float* values = x + row * width;
    if (plan != nullptr) {
      float* transformed = ThreadScratch(Scratch::kRow, step * width);
      TransformCopy(*plan, values, rows, transformed);
      values = transformed;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = row + r;
      QuantizeRow(values + r * width, width, spec.activation, stride,
                  {.codes = work.codes.data() + at * stride,
                   .scales = work.scales.data() + at * groups,
                   .zetas = work.zetas.data() + at * groups,
                   .sums = work.sums.data() + at * groups});
      if (tiles) StoreTileRow(work.codes.data() + at * stride, at, stride, work.tiles.data());
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

HWY_EXPORT(TransformCopy);
HWY_EXPORT(PrepareRows);

template <typename T>
void GrowTo(std::vector<T>& memory, int64_t count) {
  if (memory.size() < static_cast<size_t>(count)) memory.resize(static_cast<size_t>(count));
}

Activations PrepareValues(const float* x, int64_t tokens, const InputSpec& spec,
                          const TransformPlan* plan, ActsWorkspace& work) {
  if (plan == nullptr) return {.tokens = tokens, .spec = &spec, .values = x};
  GrowTo(work.transformed, tokens * spec.width);
  float* out = work.transformed.data();
  ParallelRows(tokens, plan->row_cost, plan->row_group, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(TransformCopy)
    (*plan, x + begin * spec.width, end - begin, out + begin * spec.width);
  });
  return {.tokens = tokens, .spec = &spec, .values = out};
}

}  // namespace

Activations PrepareActs(const float* x, int64_t tokens, const InputSpec& spec, bool tiles,
                        ActsWorkspace& work) {
  const TransformPlan* plan = spec.transform.identity() ? nullptr : &PlanFor(spec.transform);
  NIBBLE_CHECK(plan == nullptr || spec.transform.width() == spec.width, "transform of {} on {}",
               spec.transform.width(), spec.width);
  if (!spec.activation.quantized()) return PrepareValues(x, tokens, spec, plan, work);

  const int64_t stride = (spec.width + 63) / 64 * 64;
  const int64_t groups = spec.activation.groups(spec.width);
  GrowTo(work.codes, tokens * stride);
  if (tiles) GrowTo(work.tiles, (tokens + kTileTokens - 1) / kTileTokens * kTileTokens * stride);
  GrowTo(work.scales, tokens * groups);
  GrowTo(work.zetas, tokens * groups);
  GrowTo(work.sums, tokens * groups);
  const int64_t cost = 4 * spec.width + (plan == nullptr ? 0 : plan->row_cost);
  const int64_t unit = plan == nullptr ? 1 : plan->row_group;
  ParallelRows(tokens, cost, unit, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(PrepareRows)(x, plan, spec, stride, begin, end, tiles, work);
  });
  return {.tokens = tokens,
          .spec = &spec,
          .values = nullptr,
          .stride = stride,
          .codes = work.codes.data(),
          .tiles = tiles ? work.tiles.data() : nullptr,
          .scales = work.scales.data(),
          .zetas = spec.activation.symmetric ? nullptr : work.zetas.data(),
          .sums = work.sums.data()};
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
