// SPDX-License-Identifier: Apache-2.0
#include "quantize/plan/make_plan.h"

#include <algorithm>
#include <array>

#include "models/families/family.h"
#include "quantize/recipes/recipe_fields.h"
#include "quantize/walk/backprop.h"
#include "text/regex.h"

namespace nibble {
namespace {

// Online part of the attention output's rotation: across heads, whose own Hadamards are folded into
// V and O. A Fourier transform takes heads of any number as one row.
TransformSpec AcrossHeads(Rotation rotation, const HeadShape& shape) {
  if (rotation == Rotation::kFourier) return TransformOf(rotation, shape.q_width());
  TransformSpec spec;
  spec.factors = FlatFactors(shape.heads);
  if (rotation == Rotation::kKronecker && shape.heads > 1) {
    spec.factors = {{shape.heads, FactorKind::kRandom, true}};  // of heads: rotate.cc, PerHead
  }
  if (!spec.factors.empty()) spec.inner = shape.head_dim;
  return spec;
}

bool ReadsNorm(Role role) {
  constexpr std::array kReaders = {Role::kQ, Role::kK, Role::kV, Role::kGate, Role::kUp};
  return std::ranges::find(kReaders, KindOf(role)) != kReaders.end();
}

// QuIP#'s incoherence on the output side: of what nothing else mixes there. Rows of v are mixed in
// each head, and those of o and down with the residual stream, unless that stays as it is.
bool TransformsOutputs(const ModelConfig& config, const Recipe& recipe, Role role) {
  const Role kind = KindOf(role);
  const bool to_stream = kind == Role::kO || kind == Role::kDown;
  const bool mixed = kind == Role::kV || (to_stream && TurnsResidual(config, recipe));
  return recipe.transforms_outputs() && !mixed && MayTransformOutputs(config, role);
}

LinearPlan PlanFormats(const ModelConfig& config, const Recipe& recipe, int64_t layer, Role role) {
  const int64_t inputs = config.inputs(layer, role);
  LinearPlan linear = {.weights = recipe.weights,
                       .activations = recipe.activations,
                       .transform_bits = recipe.transform_bits};
  if (!linear.weights.quantized()) linear.weights.sparse = false;
  if (recipe.transforms_online() && role == Role::kO) {
    linear.input_transform = AcrossHeads(recipe.rotation, config.head_shape(layer));
  }
  if (recipe.transforms_online() && KindOf(role) == Role::kDown) {
    linear.input_transform = TransformOf(recipe.rotation, inputs);
  }
  if (recipe.transforms_online() && !TurnsResidual(config, recipe) && ReadsNorm(role)) {
    linear.input_transform = TransformOf(recipe.rotation, config.hidden_size);
  }
  if (linear.weights.quantized() && TransformsOutputs(config, recipe, role)) {
    linear.output_transform = TransformOf(recipe.rotation, config.outputs(layer, role));
  }
  if (recipe.order == ChannelOrder::kNone) return linear;
  // Up and gate make down's input, in any order, unless a transform mixes it.
  linear.gather = KindOf(role) != Role::kDown || !linear.input_transform.identity();
  if (recipe.tail == 0 || !linear.weights.quantized()) return linear;
  linear.tail = {.columns = TailColumns(recipe, config.hidden_size, inputs),
                 .weights = recipe.tail_weights,
                 .activations = recipe.tail_activations};
  return linear;
}

LinearPlan PlanLinear(const ModelConfig& config, const Recipe& recipe, int64_t layer, Role role) {
  LinearPlan linear = PlanFormats(config, recipe, layer, role);
  const int64_t width = config.inputs(layer, role) - linear.tail.columns;
  for (FormatSpec* format : {&linear.weights, &linear.activations}) {
    format->group = FittingGroup(format->group, width);
    if (format->group == 0) format->second_level = false;
  }
  return linear;
}

std::string RuleName(const Rule& rule) {
  return fmt::format("--rule {}:{}", rule.pattern, rule.fields);
}

// Records which fields change something, in any of the recipes that have them.
class FieldUses {
 public:
  void See(const Recipe& recipe) {
    for (const RecipeField& field : RecipeFields()) {
      std::string_view& idle = reasons_.try_emplace(&field, "no linear has it").first->second;
      if (!idle.empty()) idle = field.idle(recipe);
    }
  }
  void Require(std::span<const FieldValue> values, std::string_view where) const {
    for (const FieldValue& value : values) {
      const std::string_view idle = reasons_.at(value.field);
      if (!idle.empty()) FailUsage("{}{} changes nothing: {}", where, OptionText(value), idle);
    }
  }
  // {"rotation": "hadamard", "damp": 0.01, ...}: those that a plan does not show.
  Json Record(const Recipe& recipe) const {
    Json record = Json::object();
    for (const auto& [field, idle] : reasons_) {
      if (field->get == nullptr || !idle.empty()) continue;
      const double value = field->get(recipe);
      if (value == 0 && !field->always_recorded) continue;
      record[std::string(field->name)] = ValueJson({field, value});
    }
    return record;
  }

 private:
  std::map<const RecipeField*, std::string_view> reasons_;
};

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

struct CompiledRule {
  CompiledRule(const Rule& rule)
      : name(RuleName(rule)),
        pattern(rule.pattern, Regex::Syntax::kPcre2, name),
        values(ParseFields(rule.fields)) {}

  std::string name;
  Regex pattern;
  std::vector<FieldValue> values;
  FieldUses uses = {};
  bool used = false;
};

// Plans of all linears and tables, each from the recipe as the rules that find it change it.
// `uses`: of the recipe's own fields.
std::map<std::string, LinearPlan> PlanLinears(const ModelConfig& config, const Recipe& recipe,
                                              FieldUses& uses) {
  std::vector<CompiledRule> rules(recipe.rules.begin(), recipe.rules.end());
  std::map<std::string, LinearPlan> linears;
  const auto add = [&](int64_t layer, Role role, Recipe changed) {
    const std::string name = LinearName(layer, role), source = SourceName(config, layer, role);
    std::vector<CompiledRule*> found;
    for (CompiledRule& rule : rules) {
      if (rule.pattern.Matches(name) || rule.pattern.Matches(source)) found.push_back(&rule);
    }
    for (const CompiledRule* rule : found) SetFields(rule->values, changed);
    const bool looked_up = role == Role::kEmbedding || role == Role::kLayerTable;
    if (looked_up) changed.activations = {.bits = 32};
    for (CompiledRule* rule : found) rule->uses.See(changed);
    for (CompiledRule* rule : found) rule->used = true;
    if (!looked_up && role != Role::kHead) uses.See(changed);
    linears[name] = PlanLinear(config, changed, layer, role);
    if (looked_up) linears[name].activations = {};
  };
  const auto add_unless_fixed = [&](int64_t layer, Role role, const Recipe& own) {
    if (const LinearPlan* const fixed = FixedPlan(role)) {
      linears[LinearName(layer, role)] = *fixed;  // without rules
    } else {
      add(layer, role, own);
    }
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (Role role : config.layer_roles(layer)) add_unless_fixed(layer, role, recipe);
  }
  for (Role role : config.model_roles()) add_unless_fixed(0, role, TableRecipe(recipe, role));
  for (const CompiledRule& rule : rules) {
    if (!rule.used) {
      FailUsage("{}: no linear has such a name; names are {} to {}, {} and {}", rule.name,
                SourceName(config, 0, Role::kQ),
                SourceName(config, config.layers - 1, config.layer_roles(config.layers - 1).back()),
                SourceName(config, 0, Role::kEmbedding), SourceName(config, 0, Role::kHead));
    }
    rule.uses.Require(rule.values, rule.name + ": ");
  }
  return linears;
}

// Returns whether the residual stream is turned by a matrix that nothing but a product undoes.
bool RotatesDensely(const ModelConfig& config, const Recipe& recipe) {
  return TurnsResidual(config, recipe) &&
         (recipe.learns_rotation() || recipe.rotation > Rotation::kHadamard);
}

void TieHead(const ModelConfig& config, const Recipe& recipe, Plan& plan) {
  plan.tied_head = WhyTwoTables(config, recipe, plan).empty();
  if (!plan.tied_head || !plan.norms_folded) return;
  plan.head_rotation = RotatesDensely(config, recipe);
  if (plan.head_rotation) return;
  plan.linears[LinearName(0, Role::kHead)].input_transform = FullHadamard(config.hidden_size);
}

// Refuses what layers cannot learn clips and scales with.
void CheckBlockTraining(const ModelConfig& config, const Recipe& recipe) {
  if (recipe.block_epochs == 0) return;
  if (!Differentiable(config)) {
    FailUsage(
        "--block-epochs: gradients are known of layers with one gated FFN behind attention; use 0");
  }
  if (recipe.rotation != Rotation::kNone || recipe.order != ChannelOrder::kNone) {
    FailUsage("--block-epochs: channels are rotated or ordered; use --rotation none, --order none");
  }
  if (recipe.rounding != Rounding::kNearest || recipe.output_clips) {
    FailUsage("--block-epochs: learned clips are for --rounding rtn and --no-output-clips");
  }
}
// Likewise, of one linear.
void CheckLearnedClips(const std::string& name, const FormatSpec& weights) {
  if (!weights.quantized()) return;
  const bool integers = weights.codebook == Codebook::kNone && !weights.sparse;
  if (integers && !weights.symmetric && !weights.second_level && weights.clip == 1) return;
  FailUsage("{}: --block-epochs needs asymmetric integers on one level: --w-asym --w-clip 1", name);
}

// Refuses what layers that are rounded in part cannot be tuned with.
void CheckBlockTuning(const ModelConfig& config, const Recipe& recipe) {
  if (recipe.tune_epochs == 0) return;
  if (!Differentiable(config)) {
    FailUsage(
        "--tune-blocks: gradients are known of layers with one gated FFN behind attention; use 0");
  }
  if (recipe.arranges_channels()) {
    FailUsage("--tune-blocks: channels are ordered or scaled; use --order none, --output-alpha 0");
  }
  if (recipe.gptaq > 0) {
    FailUsage("--tune-blocks: weights make up for wrong inputs already; use --gptaq 0");
  }
}

// Refuses what a search of scales in the source's own channels does not see.
void CheckScaleSearch(const Recipe& recipe) {
  if (!recipe.searches_scales()) return;
  if (recipe.rotation != Rotation::kNone) {
    FailUsage(
        "--scale-steps: rotations mix the channels that it scales; use --rotation none, or 0");
  }
  if (recipe.order != ChannelOrder::kNone) {
    FailUsage("--scale-steps: groups change where channels are ordered; use --order none, or 0");
  }
  if (recipe.smoothing > 0 || recipe.output_smoothing > 0) {
    FailUsage("--scale-steps: --alpha and --output-alpha scale the same channels; use 0 for these");
  }
}

// The loader's own checks, run before any work is done.
void CheckPlan(Plan plan, const ModelConfig& config, const Recipe& recipe) {
  for (auto& [name, linear] : plan.linears) {
    if (linear.weights.in_blocks() && recipe.act_order) {
      FailUsage("{}: {} weights need the columns in their own order; use --no-act-order", name,
                FormatText(linear.weights));
    }
    if (linear.weights.e2m1() && recipe.rounding == Rounding::kGptq) {
      FailUsage("{}: GPTQ rounds to codes in equal steps, which e2m1 is not; use --rounding rtn",
                name);
    }
    if (linear.weights.compared() && linear.tail.columns > 0) {
      FailUsage(
          "{}: weights of {} are stored as floats, beside which there is no tail; use --tail 0",
          name, FormatText(linear.weights));
    }
    const bool of_layer = name.starts_with("layers.");
    if (recipe.block_epochs > 0 && of_layer) CheckLearnedClips(name, linear.weights);
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
}

}  // namespace

std::string_view WhyTwoTables(const ModelConfig& config, const Recipe& recipe, const Plan& plan) {
  if (!config.tied_head) return "the model has two";
  const bool alike = plan.at(0, Role::kHead).weights == plan.at(0, Role::kEmbedding).weights;
  if (!alike) return "their formats differ";
  // Compares the matrix that undoes the rotation, in fp32, with a second table.
  const FormatSpec& format = plan.at(0, Role::kHead).weights;
  if (RotatesDensely(config, recipe) &&
      32 * config.hidden_size >= format.bits * config.vocab_size) {
    return "what undoes the rotation would be larger than a second one";
  }
  return "";
}

Plan MakePlan(const ModelConfig& config, const Recipe& wanted) {
  const Recipe recipe = FittedTo(config, wanted);
  Plan plan;
  plan.k = recipe.k;
  plan.v = recipe.v;
  plan.recent_bits = recipe.recent_bits();
  plan.center_keys = recipe.centers_keys();
  plan.norms_folded = TurnsResidual(config, recipe);
  CheckScaleSearch(recipe);
  CheckBlockTraining(config, recipe);
  CheckBlockTuning(config, recipe);
  if (recipe.smoothing > 0 && plan.norms_folded) {
    FailUsage("--alpha: this rotation folds the norms away; use --rotation none or inputs, or 0");
  }
  if (recipe.balance > 0 && plan.norms_folded) {
    FailUsage("--balance: this rotation folds the norms away; use --rotation inputs, or 0");
  }
  if (recipe.balance > 0 && !config.has(LayerVector::kMlpNorm)) {
    FailUsage("--balance: no norms stand in front of this model's linears to be scaled; use 0");
  }
  if (recipe.smoothing > 0 && !config.has(LayerVector::kMlpNorm)) {
    FailUsage("--alpha: no norms stand in front of this model's linears to be scaled; use 0");
  }
  if (recipe.output_smoothing > 0 && recipe.transforms_online()) {
    FailUsage("--output-alpha: online transforms mix what o and down read; use --no-online, or 0");
  }
  if (recipe.learns_rotation() && !plan.norms_folded) {
    FailUsage(
        "norms behind o and down keep this model's residual stream as it is; use --fixed-rotation");
  }
  if (recipe.centers_keys() && !config.centers_keys()) {
    FailUsage("--center-keys: scores of this model are capped or have sinks; use --raw-keys");
  }
  if (recipe.output_smoothing > 0 && config.shares_kv()) {
    FailUsage("--output-alpha: layers of this model read values of others; use 0");
  }
  if (recipe.output_smoothing > 0 && config.value_norms) {
    FailUsage("--output-alpha: values of this model have norms, which undo it; use 0");
  }
  if (recipe.output_smoothing > 0 && !config.gating.linear_in_up()) {
    FailUsage("--output-alpha: gates of this model clamp what they let through; use 0");
  }
  if (recipe.loss_groups > 0 && !Differentiable(config)) {
    FailUsage(
        "--loss-groups: gradients are known of layers with one gated FFN behind attention; use 0");
  }
  if (recipe.transforms_online()) plan.kv_rotation = FullHadamard(config.head_dim);
  try {
    FieldUses uses;
    plan.linears = PlanLinears(config, recipe, uses);
    uses.Require(recipe.asked, "");
    plan.provenance = uses.Record(recipe);
    TieHead(config, recipe, plan);
    for (auto& [name, linear] : plan.linears) {
      if (linear.input_transform.identity()) linear.transform_bits = 0;
    }
    CheckPlan(plan, config, recipe);
  } catch (const Error& error) {  // whatever it is, the recipe's fields are at fault
    FailUsage("{}", error.what());
  }
  return plan;
}

Plan MakePlan(const Network& source, const Recipe& recipe) {
  Plan plan = MakePlan(source.config, recipe);
  if (recipe.rounding != Rounding::kStored) return plan;
  if (source.stored_codes.empty()) {
    FailUsage("{} has floats and no codes that --rounding stored could keep; try --rounding gptq",
              source.directory);
  }
  if (recipe.maps())
    FailUsage("--rounding stored keeps codes, which cannot be rotated, smoothed or ordered");
  for (int64_t i = 0; i < source.config.layers; ++i) {
    for (const auto& [role, linear] : source.layers[static_cast<size_t>(i)].linears) {
      if (!linear.weights.format.quantized()) continue;
      if (FixedPlan(role) != nullptr) {
        FailUsage("{}: {} has codes and stays in floats; --rounding stored cannot keep them",
                  source.directory, LinearName(i, role));
      }
      LinearPlan& planned = plan.linears.at(LinearName(i, role));
      planned.weights = linear.weights.format;
      planned.gather = !linear.input.gather.empty();
    }
  }
  return plan;
}

}  // namespace nibble
