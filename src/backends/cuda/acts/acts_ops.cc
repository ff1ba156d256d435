// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/acts/acts_ops.h"

#include <algorithm>

#include "backends/cuda/acts/decode_acts.h"
#include "backends/cuda/runtime/cuda_error.h"

namespace nibble::cuda {
namespace {

constexpr int64_t kCodeStride = 128;  // rows of codes are a multiple of this
// Kernels read the scales of whole tiles of tokens, whether the tokens exist or not.
constexpr int64_t kTokensAhead = kTileRows;

Source SourceOf(const ActsSource& source) {
  switch (source.op) {
    case ActsSource::Op::kCopy:
    case ActsSource::Op::kIntermediate:
      return Source::kPlain;
    case ActsSource::Op::kRmsNorm:
      return Source::kRmsNorm;
    case ActsSource::Op::kGated:
      return Source::kGated;
  }
  NIBBLE_CHECK(false);
}

}  // namespace

const HadamardPlan& ActsOps::PlanFor(const InputSpec& spec) {
  const auto made = hadamards_.try_emplace({spec.transform, spec.transform_bits}, spec.transform,
                                           spec.transform_bits);
  return made.first->second.plan();
}

void ActsOps::MakeReady(const PackedLinear& linear) {
  if (!linear.input.transform.identity()) PlanFor(linear.input);
  const TransformSpec& outputs = linear.output_transform;
  if (!outputs.identity()) PlanFor({.width = outputs.width(), .transform = outputs});
}

PreparePart ActsOps::Place(const FormatSpec& format, int64_t tokens, int64_t columns, Part& part) {
  const int64_t groups = format.groups(columns);
  Activations& acts = part.acts;
  acts = {.tokens = tokens, .width = columns, .format = format};
  PreparePart p = {.columns = static_cast<int>(columns)};
  if (columns % 8 != 0) Fail("no CUDA kernel for rows of {} activations", columns);
  if (!format.quantized()) {
    acts.values = p.values = part.values.Grow(tokens * columns);
    if (format.bits != 16) return p;
  }
  if (format.group % 32 != 0) Fail("no CUDA kernel for groups of {} activations", format.group);
  acts.stride = (columns + kCodeStride - 1) / kCodeStride * kCodeStride;
  const int64_t rows = format.bits == 16 ? PlaneRows(tokens) : tokens;
  acts.codes = p.codes = part.codes.Grow(WholeTiles(rows) * acts.stride);
  const int64_t scales = ScalePitch(tokens) * groups + kTokensAhead;
  acts.scales = p.scales = part.scales.Grow(scales);
  acts.zero_offsets = p.zero_offsets = format.symmetric ? nullptr : part.zero_offsets.Grow(scales);
  acts.sums = p.sums = part.sums.Grow(std::max(scales, rows));
  p.bits = format.bits, p.symmetric = format.symmetric, p.signed_scale = format.signed_scale;
  p.clip = static_cast<float>(format.clip);
  p.group = groups == 1 ? 0 : static_cast<int>(format.group), p.stride = acts.stride;
  return p;
}

Activations ActsOps::Prepare(const ActsSource& source, int64_t tokens, const InputSpec& spec,
                             cudaStream_t stream) {
  const bool changed = !spec.gather.empty() || !spec.scales.empty() || spec.tail_width > 0;
  if (source.op == ActsSource::Op::kCopy && spec.transform.identity() && !changed &&
      spec.activations.bits == 32) {
    return {.tokens = tokens, .width = spec.width, .format = spec.activations, .values = source.x};
  }
  const Intermediate* const values =
      source.op == ActsSource::Op::kGated ? source.gate : source.values;
  PrepareArguments a = {.source = SourceOf(source),
                        .type = values != nullptr ? kIntermediate : RealType::kFloat32,
                        .x = values != nullptr ? static_cast<const void*>(values) : source.x,
                        .up = source.up,
                        .gating = source.gating,
                        .norm = source.norm_weight,
                        .eps = source.norm_eps,
                        .tokens = tokens,
                        .x_stride = spec.width,
                        .width = static_cast<int>(spec.width),
                        .hadamard = PlanFor(spec)};
  a.main = Place(spec.activations, tokens, spec.main_width(), main_);
  // The scales serve as weights of a norm that has none: every kernel reads those.
  const bool as_norm = source.op == ActsSource::Op::kRmsNorm && source.norm_weight == nullptr;
  (as_norm ? a.norm : a.scales) = scales_(spec.scales);
  a.order = gathers_(spec.gather);
  if (spec.tail_width > 0) {
    a.tail = Place(spec.tail_activations, tokens, spec.tail_width, tail_);
    if (a.tail.values != nullptr && tokens >= kMinTailTokens) {
      a.tail.pairs = tail_.pairs.Grow(WholeTiles(tokens) * PairStride(spec.tail_width));
      tail_.acts.tiles = reinterpret_cast<const int8_t*>(a.tail.pairs);
    }
    main_.acts.tail = &tail_.acts;
  }
  if (tokens <= kFewTokens && !spec.transform.identity()) {
    a.transformed = transformed_.Grow(tokens * spec.width);
  }
  if (tokens > 0) cuda::PrepareActs(a, stream);
  return main_.acts;
}

void ActsOps::Transform(const TransformSpec& transform, int64_t tokens,
                        std::span<Intermediate* const> all, cudaStream_t stream) {
  const int64_t width = transform.width();
  if (width % 8 != 0) Fail("no CUDA kernel for rows of {} outputs", width);
  PrepareArguments a = {.type = kIntermediate,
                        .x_stride = width,
                        .width = static_cast<int>(width),
                        .hadamard = PlanFor({.width = width, .transform = transform})};
  for (; tokens > 0 && !all.empty(); all = all.subspan(std::min<size_t>(2, all.size()))) {
    const bool two = all.size() > 1;  // in one launch
    a.x = all[0], a.tokens = two ? 2 * tokens : tokens;
    a.second =
        two ? (reinterpret_cast<intptr_t>(all[1]) - reinterpret_cast<intptr_t>(all[0])) / 2 : 0;
    a.main = {.columns = static_cast<int>(width), .bf16 = reinterpret_cast<uint16_t*>(all[0])};
    cuda::PrepareActs(a, stream);
  }
}

const float* ActsOps::DecodePart(const Activations& acts, Part& part, cudaStream_t stream) {
  if (!acts.format.quantized()) return acts.values;
  float* values = part.decoded.Grow(acts.tokens * acts.width);
  DecodeActivations({.codes = acts.codes,
                     .stride = acts.stride,
                     .scales = acts.scales,
                     .zero_offsets = acts.zero_offsets,
                     .tokens = acts.tokens,
                     .width = acts.width,
                     .groups = acts.format.groups(acts.width),
                     .values = values},
                    stream);
  return values;
}

const float* ActsOps::Decode(const Activations& acts, cudaStream_t stream) {
  const float* main = DecodePart(acts, main_, stream);
  if (acts.tail == nullptr) return main;
  const Activations& tail = *acts.tail;
  const int64_t width = acts.width + tail.width;
  float* joined = joined_.Grow(acts.tokens * width);
  const auto copy = [&](const float* from, int64_t columns, float* to) {
    const auto bytes = static_cast<size_t>(columns) * sizeof(float);
    CheckCuda(cudaMemcpy2DAsync(to, static_cast<size_t>(width) * sizeof(float), from, bytes, bytes,
                                static_cast<size_t>(acts.tokens), cudaMemcpyDeviceToDevice, stream),
              "copy on the GPU");
  };
  copy(main, acts.width, joined);
  copy(DecodePart(tail, tail_, stream), tail.width, joined + acts.width);
  return joined;
}

}  // namespace nibble::cuda
