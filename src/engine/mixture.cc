// SPDX-License-Identifier: Apache-2.0
#include "engine/mixture.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace nibble {
namespace {

// The score that an expert's weight is in proportion to: sigmoid(logit) or exp(logit - largest),
// where `largest` is the token's largest logit.
float Score(const RouterSpec& router, float logit, float largest) {
  return router.sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit - largest);
}

void Weigh(std::span<const float> logits, int64_t tokens, const RouterSpec& router,
           std::vector<Routes::Expert>& experts) {
  const auto chosen = std::span(experts).first(static_cast<size_t>(router.experts));
  std::vector<float> largest(static_cast<size_t>(tokens), -INFINITY);
  std::vector<float> sums(static_cast<size_t>(tokens));
  const auto row = [&](size_t t) { return logits.subspan(t * chosen.size(), chosen.size()); };
  const auto for_each = [&](auto&& visit) {
    for (size_t e = 0; e < chosen.size(); ++e) {
      chosen[e].weights.resize(chosen[e].rows.size());
      for (size_t i = 0; i < chosen[e].rows.size(); ++i) {
        const auto t = static_cast<size_t>(chosen[e].rows[i]);
        visit(t, row(t)[e], chosen[e].weights[i]);
      }
    }
  };
  for_each([&](size_t t, float logit, float&) { largest[t] = std::max(largest[t], logit); });
  for_each([&](size_t t, float logit, float& weight) {
    sums[t] += weight = Score(router, logit, largest[t]);
  });
  for (size_t t = 0; t < sums.size(); ++t) {  // the largest is among the chosen
    if (router.normalized) {
      sums[t] += router.sigmoid ? kMinScoreSum : 0;
      continue;
    }
    sums[t] = router.sigmoid ? 1 : 0;
    for (size_t e = 0; !router.sigmoid && e < chosen.size(); ++e) {
      sums[t] += Score(router, row(t)[e], largest[t]);
    }
  }
  for_each([&](size_t t, float, float& weight) { weight = weight / sums[t] * router.scale; });
}

// A vector of a layer in host memory; empty where the layer has none.
std::vector<float> Values(Backend& backend, const Buffer<float>& vector, int64_t count) {
  if (vector.data() == nullptr) return {};
  const float* const values = backend.Read(vector.data(), count);
  return {values, values + count};
}

// Adds the experts that every token has, behind those that are chosen.
void AddShared(int64_t tokens, const RouterSpec& router, Routes& routes) {
  Routes::Expert all = {std::vector<int32_t>(static_cast<size_t>(tokens)),
                        std::vector<float>(static_cast<size_t>(tokens), 1.0f)};
  std::iota(all.rows.begin(), all.rows.end(), 0);
  routes.experts.insert(routes.experts.end(), static_cast<size_t>(router.shared), all);
}

}  // namespace

Routes ChooseExperts(std::span<const float> logits, int64_t tokens, const RouterSpec& router,
                     std::span<const float> bias) {
  const int64_t experts = router.experts;
  Routes routes = {tokens, std::vector<Routes::Expert>(static_cast<size_t>(experts))};
  std::vector<size_t> order(static_cast<size_t>(experts));
  const auto key = [&](float logit, size_t e) {
    const float score = router.sigmoid ? Score(router, logit, 0) : logit;
    const float sum = bias.empty() ? score : score + bias[e];
    return std::isnan(sum) ? -INFINITY : sum;  // the smallest, so that there is an order
  };
  for (int64_t t = 0; t < tokens; ++t) {
    const auto row = logits.subspan(static_cast<size_t>(t * experts), order.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](size_t e) { return key(row[e], e); });
    for (int64_t i = 0; i < router.experts_per_token; ++i) {
      routes.experts[order[static_cast<size_t>(i)]].rows.push_back(static_cast<int32_t>(t));
    }
  }
  Weigh(logits, tokens, router, routes.experts);
  AddShared(tokens, router, routes);
  return routes;
}

Routes WeighExperts(std::span<const float> logits, const Routes& chosen, const RouterSpec& router) {
  Routes routes = chosen;
  Weigh(logits, routes.tokens, router, routes.experts);
  return routes;
}

Routes RouteTokens(const Decoder& d, const Layer& layer, const float* x, int64_t tokens,
                   const Routes* chosen) {
  d.scratch.Reserve(d.config, tokens);
  float* const logits = d.scratch.router_logits.data();
  const RouterSpec& router = d.config.router;
  const int64_t count = tokens * router.experts;
  const Activations acts = d.backend.PrepareActs(LayerInput(d.config, layer, Role::kRouter, x),
                                                 tokens, layer.inputs[Role::kRouter]);
  d.backend.Gemm(acts, layer.ids[Role::kRouter], logits, router.experts, false);
  const auto values = [&](LayerVector vector) {
    return Values(d.backend, layer.vectors[vector], router.experts);
  };
  const std::vector<float> bias = values(LayerVector::kRouterBias);
  const std::vector<float> scales = values(LayerVector::kExpertScales);
  const std::span<const float> read(d.backend.Read(logits, count), static_cast<size_t>(count));
  Routes routes = chosen != nullptr ? WeighExperts(read, *chosen, router)
                                    : ChooseExperts(read, tokens, router, bias);
  for (size_t e = 0; e < scales.size(); ++e) {
    for (float& weight : routes.experts[e].weights) weight *= scales[e];
  }
  return routes;
}

const float* GatherRows(const Decoder& d, std::span<const Routes::Expert> experts, int64_t tokens,
                        const float* x) {
  std::vector<int32_t> order;
  for (const Routes::Expert& expert : experts) {
    order.insert(order.end(), expert.rows.begin(), expert.rows.end());
  }
  d.scratch.Reserve(d.config, tokens);
  const int64_t hidden = d.config.hidden_size;
  const PackedWeights table = {
      .rows = tokens,
      .cols = hidden,
      .values = {DType::kF32, {tokens, hidden}, reinterpret_cast<const std::byte*>(x)}};
  d.backend.Embed(table, order, 1, d.scratch.rows.data());
  return d.scratch.rows.data();
}

namespace {

// Products of all experts' linears of a kind with the rows that their tokens have, y [.., width].
// rows: those of the prepared inputs, expert by expert; empty: the tokens.
std::vector<Backend::RowsProduct> ProductsOf(const Layer& layer, const Routes& routes, Role kind,
                                             std::span<const int32_t> rows, int64_t width,
                                             float* y) {
  std::vector<Backend::RowsProduct> products;
  size_t first = 0;
  for (size_t e = 0; e < routes.experts.size(); ++e) {
    const std::span<const int32_t> tokens = routes.experts[e].rows;
    if (tokens.empty()) continue;
    products.push_back({layer.ids[OfExpert(kind, static_cast<int64_t>(e))],
                        rows.empty() ? tokens : rows.subspan(first, tokens.size()), y});
    first += tokens.size();
    y += static_cast<int64_t>(tokens.size()) * width;
  }
  return products;
}

// RunMixture for few rows an expert: inputs are prepared for all experts together, and the products
// of a stage are one op.
void RunTogether(const Decoder& d, const Layer& layer, const Routes& routes, const float* x,
                 float* sum) {
  d.scratch.Reserve(d.config, routes.tokens);
  const int64_t hidden = d.config.hidden_size, width = d.config.expert_size;
  const int64_t all = routes.tokens * d.config.router.of_token();
  const int64_t bytes = all * width * int64_t{sizeof(float)};
  Intermediate *const gate = d.scratch.gate.Grow(bytes), *const up = d.scratch.up.Grow(bytes);
  const auto floats = [](Intermediate* values) { return reinterpret_cast<float*>(values); };
  const Role first_gate = OfExpert(Role::kGate, 0), first_down = OfExpert(Role::kDown, 0);

  auto products = ProductsOf(layer, routes, Role::kGate, {}, width, floats(gate));
  std::ranges::copy(ProductsOf(layer, routes, Role::kUp, {}, width, floats(up)),
                    std::back_inserter(products));
  const ActsSource h = LayerInput(d.config, layer, first_gate, x);
  d.backend.MultiplyRows(d.backend.PrepareActs(h, routes.tokens, layer.inputs[first_gate]),
                         products);
  const ActsSource gated = {
      .op = ActsSource::Op::kGated, .gate = gate, .up = up, .gating = d.config.gating};
  std::vector<int32_t> rows(static_cast<size_t>(all));
  std::iota(rows.begin(), rows.end(), 0);
  const float* outputs = d.scratch.rows.data();
  d.backend.MultiplyRows(
      d.backend.PrepareActs(gated, all, layer.inputs[first_down]),
      ProductsOf(layer, routes, Role::kDown, rows, hidden, d.scratch.rows.data()));
  for (const Routes::Expert& expert : routes.experts) {
    d.backend.AddRows(outputs, expert.rows, expert.weights, hidden, sum);
    outputs += static_cast<int64_t>(expert.rows.size()) * hidden;
  }
}

bool RunsTogether(const Decoder& d, const Layer& layer, const Routes& routes) {
  constexpr int64_t kMaxRows = 4;  // of an expert, on average
  const RouterSpec& router = d.config.router;
  const auto whole = [&](Role role) { return layer.inputs[OfExpert(role, 0)].tail_width == 0; };
  return d.backend.MultipliesRows() && layer.experts_alike && !d.config.gating.alone &&
         whole(Role::kGate) && whole(Role::kDown) &&
         routes.tokens * router.of_token() <= kMaxRows * router.all();
}

}  // namespace

void RunMixture(const Decoder& d, const Layer& layer, const Routes& routes, const float* x,
                float* sum) {
  if (RunsTogether(d, layer, routes)) return RunTogether(d, layer, routes, x, sum);
  const int64_t hidden = d.config.hidden_size;
  const float* rows = GatherRows(d, routes.experts, routes.tokens, x);  // before sum changes
  float* const outputs = d.scratch.outputs.data();
  for (size_t e = 0; e < routes.experts.size(); ++e) {
    const Routes::Expert& expert = routes.experts[e];
    const auto count = static_cast<int64_t>(expert.rows.size());
    if (count == 0) continue;
    const Role down = OfExpert(Role::kDown, static_cast<int64_t>(e));
    const ActsSource gated = MlpCore(d, layer, rows, count, static_cast<int64_t>(e));
    const Activations acts = d.backend.PrepareActs(gated, count, layer.inputs[down]);
    d.backend.Gemm(acts, layer.ids[down], outputs, hidden, false);
    d.backend.AddRows(outputs, expert.rows, expert.weights, hidden, sum);
    rows += count * hidden;
  }
}

}  // namespace nibble
