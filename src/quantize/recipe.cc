// SPDX-License-Identifier: Apache-2.0
#include "quantize/recipe.h"

#include <vector>

namespace nibble {
namespace {

constexpr const Recipe* kRecipes[] = {&kQuarotRecipe, &kGptqRecipe, &kRtnRecipe};

// Online part of the attention output's rotation: across heads. Head counts without a Hadamard
// order (6, 14) leave it out: each head's own Hadamard, folded into V and O, stays.
TransformSpec AcrossHeads(const ModelConfig& config) {
  TransformSpec spec;
  spec.factors = FactorHadamard(config.heads);
  if (!spec.factors.empty()) spec.inner = config.head_dim;
  return spec;
}

}  // namespace

std::string_view RotationName(Rotation rotation) {
  constexpr std::string_view kNames[] = {"none", "hadamard", "random"};
  return kNames[static_cast<size_t>(rotation)];
}

std::string_view RoundingName(Rounding rounding) {
  constexpr std::string_view kNames[] = {"rtn", "gptq"};
  return kNames[static_cast<size_t>(rounding)];
}

std::span<const Recipe* const> Recipes() {
  return kRecipes;
}

const Recipe& FindRecipe(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Recipe* recipe : kRecipes) {
    if (recipe->name == name) return *recipe;
    known.push_back(recipe->name);
  }
  FailUsage("no recipe \"{}\"; choose one of {}", name, fmt::join(known, ", "));
}

Plan MakePlan(const ModelConfig& config, const Recipe& recipe) {
  Plan plan;
  plan.k = recipe.k;
  plan.v = recipe.v;
  plan.norms_folded = recipe.rotation != Rotation::kNone;
  TransformSpec o_input, down_input;
  if (recipe.rotation != Rotation::kNone) {
    plan.kv_rotation = FullHadamard(config.head_dim);
    o_input = AcrossHeads(config);
    down_input = FullHadamard(config.intermediate_size);
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (Role role : kLayerRoles) {
      LinearPlan linear = {.weights = recipe.weights, .activations = recipe.activations};
      if (role == Role::kO) linear.input_transform = o_input;
      if (role == Role::kDown) linear.input_transform = down_input;
      plan.linears[LinearName(layer, role)] = linear;
    }
  }
  plan.linears[LinearName(0, Role::kHead)] = {};
  // The loader's own checks, run on the plan before any work is done.
  return PlanFromJson(ToJson(plan), config, "recipe " + std::string(recipe.name));
}

}  // namespace nibble
