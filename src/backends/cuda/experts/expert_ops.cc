// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/experts/expert_ops.h"

#include "backends/cuda/gemm/gemm_decode.h"
#include "backends/cuda/gemm/gemm_router.h"

namespace nibble::cuda {
namespace {

// The rows of a group: those that a kernel takes at once, and no more than experts have on average,
// about, since a kernel's time is that of whole groups.
int GroupRows(const RouterSpec& router, int64_t tokens) {
  const int64_t mean = tokens * router.of_token() / router.all();
  return mean <= 4 ? 8 : mean <= kMaxLaunchRows ? kMaxLaunchRows : kTileRows / 2;
}

}  // namespace

std::optional<JoinedExperts> Join(const ExpertsSpec& spec, const DeviceLinear& router,
                                  std::span<const DeviceLinear* const> gates,
                                  std::span<const DeviceLinear* const> ups,
                                  std::span<const DeviceLinear* const> downs) {
  const bool tails = spec.input.tail_width > 0 || spec.down_input.tail_width > 0;
  if (tails || spec.router.all() > kMaxRoutedExperts) return {};
  for (const auto linears : {gates, ups, downs}) {
    if (!DeviceLinear::AreExperts(linears)) return {};
  }
  const bool gated = DeviceLinear::CanGate(*gates[0], *ups[0], spec.gating, kTileRows);
  return JoinedExperts{
      .spec = spec,
      .router = &router,
      .gate = {gates[0], DeviceLinear::ExpertTerms(gates, gated ? ups : decltype(ups)())},
      .up = {ups[0], DeviceLinear::ExpertTerms(ups, {})},
      .down = {downs[0], DeviceLinear::ExpertTerms(downs, {})}};
}

const float* ExpertOps::Logits(const JoinedExperts& experts, const ActsSource& source,
                               int64_t tokens, ActsOps& acts, cudaStream_t stream) {
  const DeviceLinear& router = *experts.router;
  float* const logits = logits_.Grow(tokens * experts.spec.router.experts);
  const InputSpec& input = experts.spec.router_input;
  const bool plain = input.transform.identity() && input.scales.empty() && input.gather.empty() &&
                     input.tail_width == 0 && !input.activations.quantized();
  if (plain && source.op == ActsSource::Op::kRmsNorm &&
      router.MultiplyNormed(source, tokens, logits, stream)) {
    return logits;
  }
  Activations inputs = acts.Prepare(source, tokens, input, stream);
  if (router.needs_values()) inputs.values = acts.Decode(inputs, stream);
  router.Multiply(inputs, {logits, RealType::kFloat32, experts.spec.router.experts, false}, stream);
  return logits;
}

RouteArguments ExpertOps::MakeRoutes(const JoinedExperts& experts, const float* logits,
                                     int64_t tokens, cudaStream_t stream) {
  RouteArguments r = {.router = experts.spec.router,
                      .tokens = tokens,
                      .group_rows = GroupRows(experts.spec.router, tokens),
                      .logits = logits,
                      .bias = experts.spec.router_bias,
                      .scales = experts.spec.expert_scales};
  r.experts = experts_.Grow(r.rows()), r.weights = weights_.Grow(r.rows());
  r.places = places_.Grow(r.rows()), r.row_tokens = row_tokens_.Grow(r.rows());
  r.groups = groups_.Grow(r.max_groups()), r.group_count = group_count_.Grow(1);
  Route(r, stream);
  return r;
}

Activations ExpertOps::Gather(const Activations& tokens, const RouteArguments& routes,
                              cudaStream_t stream) {
  const int64_t rows = routes.rows(), scales = WholeTiles(rows);
  const PreparedRows to = {
      .codes = codes_.Grow(scales * tokens.stride),
      .scales = scales_.Grow(scales),
      .zero_offsets = tokens.zero_offsets == nullptr ? nullptr : zero_offsets_.Grow(scales),
      .sums = sums_.Grow(scales)};
  const PreparedRows from = {.codes = const_cast<int8_t*>(tokens.codes),
                             .scales = const_cast<float*>(tokens.scales),
                             .zero_offsets = const_cast<float*>(tokens.zero_offsets),
                             .sums = const_cast<int32_t*>(tokens.sums)};
  GatherRows(from, routes.row_tokens, rows, tokens.stride, to, stream);
  Activations gathered = tokens;
  gathered.tokens = rows;
  gathered.codes = to.codes, gathered.scales = to.scales;
  gathered.zero_offsets = to.zero_offsets, gathered.sums = to.sums;
  return gathered;
}

ActsSource ExpertOps::Gated(const JoinedExperts& experts, const Activations& rows,
                            const ExpertGroups& groups, cudaStream_t stream) {
  const int64_t width = experts.gate.first->rows();
  const auto output = [&](DeviceBuffer<Intermediate>& to) {
    return DeviceLinear::Output{to.Grow(rows.tokens * width * int64_t{sizeof(uint16_t)}),
                                kIntermediate, width, false};
  };
  const DeviceLinear::Experts gate = {*experts.gate.first, experts.gate.terms.data(),
                                      output(gate_)};
  if (DeviceLinear::CanGate(gate.first, *experts.up.first, experts.spec.gating, groups.max_rows)) {
    DeviceLinear::MultiplyGatedExperts(rows, gate, *experts.up.first, experts.spec.gating, groups,
                                       stream);
    return {.op = ActsSource::Op::kIntermediate, .values = gate_.data()};
  }
  const DeviceLinear::Experts both[] = {gate,
                                        {*experts.up.first, experts.up.terms.data(), output(up_)}};
  DeviceLinear::MultiplyExperts(rows, both, groups, stream);
  return {.op = ActsSource::Op::kGated,
          .gate = gate_.data(),
          .up = up_.data(),
          .gating = experts.spec.gating};
}

void ExpertOps::Run(const JoinedExperts& experts, const ActsSource& routed,
                    const ActsSource& source, int64_t tokens, float* x, ActsOps& acts,
                    cudaStream_t stream) {
  if (tokens == 0) return;
  const float* const logits = Logits(experts, routed, tokens, acts, stream);
  const RouteArguments routes = MakeRoutes(experts, logits, tokens, stream);
  ExpertGroups groups = {.groups = routes.groups,
                         .count = routes.group_count,
                         .max = static_cast<int>(routes.max_groups()),
                         .max_rows = routes.group_rows};
  // Small products find the tokens of their rows by themselves.
  Activations rows = acts.Prepare(source, tokens, experts.spec.input, stream);
  if (routes.group_rows <= kMaxLaunchRows) {
    groups.row_tokens = routes.row_tokens;
    rows.tokens = routes.rows();
  } else {
    rows = Gather(rows, routes, stream);
  }
  const ActsSource gated = Gated(experts, rows, groups, stream);
  groups.row_tokens = nullptr;
  const Activations inputs = acts.Prepare(gated, rows.tokens, experts.spec.down_input, stream);
  // With many rows, memory is the limit: they are written as bf16.
  const RealType type =
      routes.group_rows <= kMaxLaunchRows ? RealType::kFloat32 : RealType::kBfloat16;
  const int64_t hidden = experts.down.first->rows();
  float* const outputs = outputs_.Grow(rows.tokens * hidden);
  const DeviceLinear::Experts down = {
      *experts.down.first, experts.down.terms.data(), {outputs, type, hidden, false}};
  DeviceLinear::MultiplyExperts(inputs, {&down, 1}, groups, stream);
  AddExperts(routes, outputs, type, hidden, x, stream);
}

}  // namespace nibble::cuda
