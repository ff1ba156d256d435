// SPDX-License-Identifier: Apache-2.0
#include "quantize/plan/choose_outliers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nibble {
namespace {

// What one kind of linears of a layer reads.
struct InputOfKind {
  std::vector<std::string> linears;
  const LinearPlan* plan;
  double largest = 0, energy = 0, values = 0;
  bool wide = false;

  double mean_square() const { return values == 0 ? 0 : energy / values; }
};

std::vector<InputOfKind> InputsOf(std::span<const LayerStatistics> statistics,
                                  const ModelConfig& config, const Plan& plan) {
  std::vector<InputOfKind> inputs;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    std::map<LinearSet::Kind, InputOfKind> kinds;
    for (const LinearSet set : LinearSets(config, layer)) {
      const std::vector<Role> roles = RolesOf(set);
      const auto& [largest, energy, tokens] =
          statistics[static_cast<size_t>(layer)].inputs[roles[0]];
      InputOfKind& input = kinds[set.kind];
      input.plan = &plan.at(layer, roles[0]);
      for (const Role role : roles) input.linears.push_back(LinearName(layer, role));
      input.largest = std::max(input.largest, *std::ranges::max_element(largest));
      input.energy = std::accumulate(energy.begin(), energy.end(), input.energy);
      input.values += static_cast<double>(tokens) * static_cast<double>(energy.size());
    }
    for (auto& [kind, input] : kinds) inputs.push_back(std::move(input));
  }
  return inputs;
}

void MarkWide(double share, std::vector<InputOfKind>& inputs) {
  std::vector<InputOfKind*> order;
  for (InputOfKind& input : inputs) order.push_back(&input);
  std::ranges::stable_sort(order, std::greater(),
                           [](const InputOfKind* i) { return i->mean_square(); });
  const auto count = std::lround(share * static_cast<double>(order.size()));
  for (InputOfKind* input : std::span(order).first(static_cast<size_t>(count))) input->wide = true;
}

// A pattern that finds this name alone.
std::string Exactly(const std::string& name) {
  std::string pattern = "^";
  for (const char c : name) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
  return pattern + "$";
}

}  // namespace

std::vector<Rule> RulesOfOutliers(std::span<const LayerStatistics> statistics,
                                  const ModelConfig& config, const Recipe& recipe,
                                  const Plan& plan) {
  std::vector<InputOfKind> inputs = InputsOf(statistics, config, plan);
  MarkWide(recipe.wide_inputs, inputs);
  std::vector<Rule> rules;
  for (const InputOfKind& input : inputs) {
    const int bits = input.wide ? 8 : input.plan->activations.bits;
    const double threshold = recipe.tail_threshold * (bits >= 8 ? 2 : 1);
    const bool spiky = input.plan->tail.columns == 0 || input.largest > threshold;
    for (const std::string& linear : input.linears) {
      if (input.wide) rules.push_back({Exactly(linear), "w-bits=8,a-bits=8"});
      if (!spiky) rules.push_back({Exactly(linear), "tail=0"});
    }
  }
  return rules;
}

}  // namespace nibble
