// SPDX-License-Identifier: Apache-2.0
#include "quantize/recipe.h"

#include <algorithm>

#include "text/regex.h"

namespace nibble {
namespace {

constexpr const Recipe* kRecipes[] = {&kQuarotRecipe,      &kNibbleRecipe, &kQuikRecipe,
                                      &kAtomRecipe,        &kQserveRecipe, &kGptqRecipe,
                                      &kSmoothquantRecipe, &kRtnRecipe};

// Online part of the attention output's rotation: across heads. Head counts without a Hadamard
// order (6, 14) leave it out: each head's own Hadamard, folded into V and O, stays.
TransformSpec AcrossHeads(const ModelConfig& config) {
  TransformSpec spec;
  spec.factors = FactorHadamard(config.heads);
  if (!spec.factors.empty()) spec.inner = config.head_dim;
  return spec;
}

LinearPlan PlanFormats(const ModelConfig& config, const Recipe& recipe, Role role) {
  LinearPlan linear = {.weights = recipe.weights, .activations = recipe.activations};
  if (!linear.weights.quantized()) linear.weights.sparse = false;
  if (recipe.transforms_online() && role == Role::kO) {
    linear.input_transform = AcrossHeads(config);
  }
  if (recipe.transforms_online() && KindOf(role) == Role::kDown) {
    linear.input_transform = FullHadamard(config.intermediate_size);
  }
  if (recipe.order == ChannelOrder::kNone) return linear;
  // Up and gate make down's input, in any order, unless a transform mixes it.
  linear.gather = KindOf(role) != Role::kDown || !linear.input_transform.identity();
  if (recipe.tail == 0 || !linear.weights.quantized()) return linear;
  linear.tail = {.columns = TailColumns(recipe, config.inputs(role)),
                 .weights = recipe.tail_weights,
                 .activations = recipe.tail_activations};
  return linear;
}

LinearPlan PlanLinear(const ModelConfig& config, const Recipe& recipe, Role role) {
  LinearPlan linear = PlanFormats(config, recipe, role);
  const int64_t width = config.inputs(role) - linear.tail.columns;
  for (FormatSpec* format : {&linear.weights, &linear.activations}) {
    format->group = FittingGroup(format->group, width);
  }
  return linear;
}

// What --rule typed, or the recipe with a rule of its own.
std::string RuleName(const Recipe& recipe, const Rule& rule) {
  return rule.text.empty() ? fmt::format("recipe {}: {}", recipe.name, rule.pattern)
                           : "--rule " + rule.text;
}

// The recipe as it applies to a table: no outliers, no transform, and formats of its own.
Recipe TableRecipe(const Recipe& recipe, Role role) {
  Recipe table = recipe;
  table.weights =
      (role == Role::kHead ? recipe.head : recipe.embedding)
          .value_or(FormatSpec{.bits = recipe.weights.quantized() ? 8 : recipe.weights.bits});
  const bool integers = table.weights.quantized() && recipe.activations.quantized();
  table.activations = {.bits = integers ? 8 : 16};
  table.order = ChannelOrder::kNone;
  return table;
}

// Plans of all linears and tables, each from the recipe as the rules that find it change it.
std::map<std::string, LinearPlan> PlanLinears(const ModelConfig& config, const Recipe& recipe) {
  std::vector<Regex> patterns;
  for (const Rule& rule : recipe.rules) {
    patterns.emplace_back(rule.pattern, Regex::Syntax::kPcre2, RuleName(recipe, rule));
  }
  std::vector<bool> used(patterns.size());
  std::map<std::string, LinearPlan> linears;
  const auto add = [&](int64_t layer, Role role, Recipe changed) {
    const std::string name = LinearName(layer, role), source = SourceName(config, layer, role);
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (!patterns[i].Matches(name) && !patterns[i].Matches(source)) continue;
      used[i] = true;
      recipe.rules[i].change(changed);
    }
    linears[name] = PlanLinear(config, changed, role);
    if (role == Role::kEmbedding) linears[name].activations = {};
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (Role role : config.layer_roles()) {
      if (role != Role::kRouter) add(layer, role, recipe);
      if (role == Role::kRouter) linears[LinearName(layer, role)] = kRouterPlan;  // without rules
    }
  }
  for (Role role : kTableRoles) add(0, role, TableRecipe(recipe, role));
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    FailUsage("{}: no linear has such a name; names are {} to {}, {} and {}",
              RuleName(recipe, recipe.rules[i]), SourceName(config, 0, Role::kQ),
              SourceName(config, config.layers - 1, config.layer_roles().back()),
              SourceName(config, 0, Role::kEmbedding), SourceName(config, 0, Role::kHead));
  }
  return linears;
}

void TieHead(const ModelConfig& config, const Recipe& recipe, Plan& plan) {
  plan.tied_head = WhyTwoTables(config, recipe, plan).empty();
  if (!plan.tied_head || !plan.norms_folded) return;
  plan.linears[LinearName(0, Role::kHead)].input_transform = FullHadamard(config.hidden_size);
}

// The loader's own checks, run before any work is done.
void CheckPlan(Plan plan, const ModelConfig& config, const Recipe& recipe) {
  for (auto& [name, linear] : plan.linears) {
    if (linear.weights.sparse && recipe.act_order) {
      FailUsage("{}: 2:4 sparsity needs the columns in their own order; use --no-act-order", name);
    }
    FormatSpec& format = linear.activations;
    if (!format.quantized() || format.clip > 0) continue;
    if (!recipe.searches_clips()) {
      FailUsage("{}: a rule cannot search a clip by itself; use --a-clip 0, and rules for the rest",
                name);
    }
    format.clip = 1;
  }
  const std::string where = "recipe " + std::string(recipe.name);
  PlanFromJson(ToJson(plan), config, where);
  if (recipe.tail_threshold == 0) return;
  const auto tailed = [](const auto& linear) { return linear.second.tail.columns > 0; };
  if (std::ranges::none_of(plan.linears, tailed)) {
    FailUsage(
        "--tail-threshold {}: {} has no outlier channels to leave out; use --order and --tail",
        recipe.tail_threshold, where);
  }
  for (auto& [name, linear] : plan.linears) linear.tail = {};  // any of them may go
  PlanFromJson(ToJson(plan), config, where + " below the tail threshold");
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
  return group;
}

int64_t TailColumns(const Recipe& recipe, int64_t width) {
  constexpr int64_t kUnit = 32, kStep = 8, kWidth = 4096;
  const int64_t share = (width * recipe.tail + kWidth / 2) / kWidth;
  int64_t columns = std::max((share + kUnit / 2) / kUnit * kUnit, kUnit);
  const auto divides = [&](int64_t group) { return group == 0 || (width - columns) % group == 0; };
  while (columns < width && !(divides(recipe.weights.group) && divides(recipe.activations.group))) {
    columns += kStep;
  }
  if (columns < width) return columns;
  FailUsage("groups of {} and {} do not fit beside a tail into {} inputs", recipe.weights.group,
            recipe.activations.group, width);
}

std::string_view WhyTwoTables(const ModelConfig& config, const Recipe& recipe, const Plan& plan) {
  if (!config.tied_head) return "the model has two";
  if (recipe.learns_rotation()) return "a learned rotation is too large to be undone at run time";
  if (recipe.rotation == Rotation::kRandom) return "a random rotation has no fast inverse";
  const bool alike = plan.at(0, Role::kHead).weights == plan.at(0, Role::kEmbedding).weights;
  return alike ? "" : "their formats differ";
}

Plan MakePlan(const ModelConfig& config, const Recipe& recipe) {
  Plan plan;
  plan.k = recipe.k;
  plan.v = recipe.v;
  plan.norms_folded = recipe.rotation != Rotation::kNone;
  if (recipe.smoothing > 0 && plan.norms_folded) {
    FailUsage("smoothing needs the norms that a rotation folds away; use --rotation none");
  }
  if (recipe.output_smoothing > 0 && recipe.transforms_online()) {
    FailUsage("--output-alpha: online transforms mix what o and down read; use --no-online, or 0");
  }
  if (recipe.sweeps > 0 && recipe.gptaq > 0) {
    FailUsage("--sweeps would undo --gptaq, whose target they do not know; use one of them");
  }
  if (recipe.transforms_online()) plan.kv_rotation = FullHadamard(config.head_dim);
  try {
    plan.linears = PlanLinears(config, recipe);
    TieHead(config, recipe, plan);
    CheckPlan(plan, config, recipe);
  } catch (const Error& error) {  // whatever it is, the recipe's fields are at fault
    FailUsage("{}", error.what());
  }
  return plan;
}

}  // namespace nibble
