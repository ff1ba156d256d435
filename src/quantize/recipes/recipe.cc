// SPDX-License-Identifier: Apache-2.0
#include "quantize/recipes/recipe.h"

#include <algorithm>
#include <array>

#include "quantize/recipes/recipe_fields.h"
#include "transforms/fourier.h"

namespace nibble {
namespace {

constexpr const Recipe* kRecipes[] = {
    &kW4a8Recipe,      &kQuarotRecipe,      &kQuarotPaperRecipe, &kNibbleRecipe, &kQuikRecipe,
    &kAtomRecipe,      &kQuipsharpRecipe,   &kQserveRecipe,      &kGptqRecipe,   &kAwqRecipe,
    &kOmniquantRecipe, &kSmoothquantRecipe, &kRtnRecipe,         &kStoredRecipe};

}  // namespace

std::string_view RotationName(Rotation rotation) {
  constexpr std::string_view kNames[] = {"none",   "inputs",  "hadamard",
                                         "random", "fourier", "kronecker"};
  return kNames[static_cast<size_t>(rotation)];
}

std::string_view RoundingName(Rounding rounding) {
  constexpr std::string_view kNames[] = {"rtn", "gptq", "stored"};
  return kNames[static_cast<size_t>(rounding)];
}

std::string_view OrderName(ChannelOrder order) {
  constexpr std::string_view kNames[] = {"none", "largest", "energy"};
  return kNames[static_cast<size_t>(order)];
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

int64_t FittingGroup(int64_t group, int64_t width) {
  constexpr int64_t kUnit = 32;
  if (group <= 0 || group % kUnit != 0) return group;
  for (int64_t fitting = group; fitting > 0; fitting -= kUnit) {
    if (width % fitting == 0) return fitting;
  }
  return 0;
}

int64_t TailColumns(const Recipe& recipe, int64_t hidden_size, int64_t width) {
  constexpr int64_t kUnit = 32, kStep = 8, kWidth = 4096;
  const int64_t inputs = recipe.tail_grows ? width : std::min(hidden_size, width);
  const int64_t of = recipe.tail * 8 <= hidden_size ? hidden_size : kWidth;
  const int64_t share = (inputs * recipe.tail + of / 2) / of;
  int64_t columns = std::max((share + kUnit / 2) / kUnit * kUnit, kUnit);
  const auto divides = [&](int64_t group) { return group == 0 || (width - columns) % group == 0; };
  while (columns < width && !(divides(recipe.weights.group) && divides(recipe.activations.group))) {
    columns += kStep;
  }
  if (columns < width) return columns;
  FailUsage("groups of {} and {} do not fit beside a tail into {} inputs", recipe.weights.group,
            recipe.activations.group, width);
}

bool TurnsResidual(const ModelConfig& config, const Recipe& recipe) {
  return recipe.rotation > Rotation::kInputs && config.rotates_residual();
}

TransformSpec TransformOf(Rotation rotation, int64_t width) {
  if (rotation == Rotation::kFourier) {
    const TransformFactor factor = {width, FactorKind::kFourier};
    if (HasFactor(factor)) return {.factors = {factor}};
    FailUsage("--rotation fourier: {} is no even number of at most {}", width, kMaxFourierOrder);
  }
  if (rotation != Rotation::kKronecker) return FullHadamard(width);
  if (const auto product = RandomKronecker(width)) return *product;
  FailUsage("--rotation kronecker: {} is no product of two numbers of at most {}", width,
            kMaxRandomOrder);
}

bool Asks(const Recipe& recipe, std::string_view field) {
  return std::ranges::any_of(recipe.asked, [&](const FieldValue& value) {
    return value.field->name == field && value.value != 0;
  });
}

Recipe FittedTo(const ModelConfig& config, Recipe recipe) {
  const bool turns = TurnsResidual(config, recipe);
  if (!turns && !Asks(recipe, "learned-rotation")) recipe.learned_rotation = false;
  const bool mixed = recipe.transforms_online();
  const bool norms = !turns && config.has(LayerVector::kMlpNorm);
  if (!(mixed && norms) && !Asks(recipe, "balance")) recipe.balance = 0;
  if (!(mixed && recipe.coarse_keys()) && !Asks(recipe, "key-balance")) recipe.key_balance = 0;
  const bool centers = recipe.coarse_keys() && config.centers_keys();
  if (!centers && !Asks(recipe, "center-keys")) recipe.center_keys = false;
  if (recipe.recent_bits() == 0 && !Asks(recipe, "recent")) recipe.recent = false;
  return recipe;
}

Recipe PlainRecipe(Recipe recipe) {
  const Recipe none;
  recipe.rotation = none.rotation, recipe.learned_rotation = recipe.learned_scales = false;
  recipe.smoothing = recipe.balance = recipe.output_smoothing = 0;
  recipe.key_smoothing = recipe.key_balance = 0;
  recipe.center_keys = recipe.output_clips = false;
  recipe.cache_loss = 0, recipe.scale_steps = 0;
  recipe.block_epochs = recipe.tune_epochs = 0, recipe.learned_channels = false;
  recipe.order = none.order, recipe.tail = 0;
  recipe.tail_threshold = recipe.wide_inputs = 0;
  recipe.rounding = Rounding::kNearest;
  if (recipe.activations.clip == 0) recipe.activations.clip = 1;
  recipe.asked.clear();
  return recipe;
}

std::string_view WhyScaleTuningIsSkipped(const Recipe& recipe) {
  if (recipe.rotation == Rotation::kNone) return "nothing is rotated; use --rotation";
  if (recipe.rounding != Rounding::kGptq) return "weights are rounded to nearest";
  if (recipe.weights.compared()) return "weights of this codebook are stored without scales";
  return recipe.arranges_channels() ? "channels are ordered or scaled" : "";
}

}  // namespace nibble
