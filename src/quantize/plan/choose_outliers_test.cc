// SPDX-License-Identifier: Apache-2.0
// QUIK's choices by statistics that are written by hand, and in a whole run.
#include "quantize/plan/choose_outliers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "engine/engine_testing.h"
#include "models/import/open_network.h"
#include "models/outlier_model_testing.h"
#include "quantize/plan/make_plan.h"
#include "quantize/recipes/recipe_fields.h"
#include "quantize/run/quantize.h"

namespace nibble {
namespace {

// Every input has values of 1, four tokens, and a largest value of 10.
std::vector<LayerStatistics> LoudStatistics(const ModelConfig& config) {
  std::vector<LayerStatistics> statistics(static_cast<size_t>(config.layers));
  for (int64_t i = 0; i < config.layers; ++i) {
    for (const LinearSet set : LinearSets(config, i)) {
      const Role first = RolesOf(set)[0];
      const auto width = static_cast<size_t>(config.inputs(i, first));
      statistics[static_cast<size_t>(i)].inputs[first] = {std::vector<double>(width, 10),
                                                          std::vector<double>(width, 4), 4};
    }
  }
  return statistics;
}

Plan PlanWith(const ModelConfig& config, Recipe recipe, const std::vector<Rule>& rules) {
  recipe.rules.insert(recipe.rules.end(), rules.begin(), rules.end());
  return MakePlan(config, recipe);
}

TEST(RulesOfOutliers, QuietInputsHaveNoneAndWideOnesEightBits) {
  const ModelConfig config = ParseConfig(SmallConfig(Json::object()), "quik");
  Recipe recipe = kQuikRecipe;
  recipe.tail_threshold = 2;
  recipe.wide_inputs = 0.125;  // one of 2 x 4
  const Plan plain = MakePlan(config, recipe);
  auto statistics = LoudStatistics(config);
  const auto quiet = [&](size_t layer, Role role, double largest) {
    std::ranges::fill(statistics[layer].inputs[role].largest, 0.5);
    statistics[layer].inputs[role].largest[7] = largest;
  };
  quiet(0, Role::kO, 2);
  quiet(1, Role::kO, 2.1);
  quiet(0, Role::kDown, 4.1);  // of 8 bits
  quiet(1, Role::kDown, 4);
  quiet(1, Role::kQ, 4);
  statistics[1].inputs[Role::kQ].energy[3] = 300;  // the largest mean square

  Plan expected = plain;
  const auto plan_of = [&](int64_t layer, Role role) -> LinearPlan& {
    return expected.linears.at(LinearName(layer, role));
  };
  plan_of(0, Role::kO).tail = plan_of(1, Role::kDown).tail = {};
  for (const Role role : {Role::kQ, Role::kK, Role::kV}) {
    LinearPlan& linear = plan_of(1, role);
    linear.weights.bits = linear.activations.bits = 8;
    linear.tail = {};
  }
  const Plan plan = PlanWith(config, recipe, RulesOfOutliers(statistics, config, recipe, plain));
  for (const auto& [name, linear] : plan.linears) {
    EXPECT_EQ(linear, expected.linears.at(name)) << name;
  }
}

TEST(RulesOfOutliers, ExpertsAreOne) {
  const ModelConfig config = ParseConfig(SmallConfig({{"model_type", "qwen3_moe"},
                                                      {"num_experts", 3},
                                                      {"num_experts_per_tok", 2},
                                                      {"moe_intermediate_size", 64}}),
                                         "quik-experts");
  Recipe recipe = kQuikRecipe;
  recipe.tail_threshold = 5;
  const Plan plain = MakePlan(config, recipe);
  auto statistics = LoudStatistics(config);
  for (int64_t e = 0; e < 3; ++e) {
    std::ranges::fill(statistics[0].inputs[OfExpert(Role::kDown, e)].largest, 9);
  }
  statistics[0].inputs[OfExpert(Role::kDown, 1)].largest[0] = 11;  // above twice the threshold
  EXPECT_EQ(PlanWith(config, recipe, RulesOfOutliers(statistics, config, recipe, plain))
                .at(0, OfExpert(Role::kDown, 0))
                .tail.columns,
            32);
  statistics[0].inputs[OfExpert(Role::kDown, 1)].largest[0] = 9;
  const Plan plan = PlanWith(config, recipe, RulesOfOutliers(statistics, config, recipe, plain));
  for (int64_t e = 0; e < 3; ++e) EXPECT_EQ(plan.at(0, OfExpert(Role::kDown, e)).tail.columns, 0);
  EXPECT_EQ(plan.at(1, OfExpert(Role::kDown, 0)).tail.columns, 0) << "10 is twice 5";
  EXPECT_EQ(plan.at(1, OfExpert(Role::kGate, 0)).tail.columns, 32);
}

// The largest value of the layer's o lies between those of the other inputs.
TEST(RulesOfOutliers, AreFollowedByARun) {
  Json changes = {{"hidden_size", 128}, {"intermediate_size", 256}};
  changes["vocab_size"] = 4096;  // of the tokenizer
  const Json small = SmallConfig(changes);
  const std::string model = RandomModel("quik-run", small, OutlierValues(small));
  std::filesystem::copy_file(std::string(kTinyModel) + "/tokenizer.json", model + "/tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  const ModelConfig config = OpenNetwork(model).config;
  QuantizeOptions options = {.model = model,
                             .output = testing::TempDir() + "/quik-run-out",
                             .recipe = ChangedRecipe(kQuikRecipe, ParseFields("down-bits=4"), {}),
                             .calibration_windows = 2,
                             .context = 64,
                             .force = true};
  std::filesystem::remove_all(options.output + ".partial");  // of a test that crashed
  std::vector<LayerStatistics> statistics;
  const QuantizeReport all = Quantize(options, &statistics);
  std::vector<double> largest;
  for (const LayerStatistics& layer : statistics) {
    for (const auto& [role, input] : layer.inputs) {
      largest.push_back(*std::ranges::max_element(input.largest));
    }
  }
  std::ranges::sort(largest);
  ASSERT_LT(largest[3], largest[4]);
  options.recipe = ChangedRecipe(
      options.recipe, ParseFields(fmt::format("tail-threshold={}", (largest[3] + largest[4]) / 2)),
      {});
  const QuantizeReport some = Quantize(options, &statistics);
  int64_t without = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    for (const LinearSet set : LinearSets(config, i)) {
      without += some.plan.at(i, RolesOf(set)[0]).tail.columns == 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(without, 4);
  EXPECT_LT(some.quantized_bits_per_weight, all.quantized_bits_per_weight);
  const Json stored = OpenNetwork(options.output).config_json.at("quantization_config");
  EXPECT_EQ(PlanFromJson(stored, config, "the checkpoint").linears, some.plan.linears);
}

}  // namespace
}  // namespace nibble
