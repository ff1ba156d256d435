// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/expected_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/engine_testing.h"
#include "models/families/shapes.h"
#include "quantize/plan/make_plan.h"

namespace nibble {
namespace {

// A title that a run reports and nobody expects would leave its ETA at that of the stage alone.
void ExpectStagesOfARun(const Recipe& recipe, size_t least) {
  QuantizeOptions options = {.model = kTinyModel,
                             .output = testing::TempDir() + "/expected-stages",
                             .recipe = recipe,
                             .calibration_windows = 2,
                             .context = 64,
                             .force = true};
  std::filesystem::remove_all(options.output + ".partial");
  std::vector<std::string> reported;
  QuantizeReport report;
  {
    const ProgressReceiver receiver([&](const ProgressState& state) {
      if (reported.empty() || reported.back() != state.title) reported.push_back(state.title);
    });
    report = Quantize(options);
  }
  options.recipe = report.recipe;
  const auto stages = ExpectedStages(report.config, report.plan, options);
  auto next = stages.begin();
  for (const std::string& title : reported) {
    next =
        std::find_if(next, stages.end(), [&](const auto& stage) { return stage.title == title; });
    ASSERT_NE(next, stages.end()) << title;
    EXPECT_GT(next->seconds, 0) << title;
    ++next;
  }
  EXPECT_GE(reported.size(), least) << recipe.name;
}

TEST(ExpectedStages, AreThoseOfARunInItsOrder) {
  Recipe recipe = kNibbleRecipe;
  recipe.center_keys = true;
  ExpectStagesOfARun(recipe, 4);      // of rotation, statistics, transforms, clips and quantize
  ExpectStagesOfARun(kAwqRecipe, 2);  // search and quantize
  Recipe omniquant = kOmniquantRecipe;
  omniquant.block_epochs = 1;
  ExpectStagesOfARun(omniquant, 2);  // statistics and quantize
}

TEST(ExpectedStages, TakeAGpuLessTimeThanAFewCores) {
  const ModelConfig config = FindShape("smollm2-135m");
  QuantizeOptions options = {
      .recipe = kW4a8Recipe, .calibration_windows = 16, .context = 512, .loss_tokens = 2048};
  const Plan plan = MakePlan(config, options.recipe);
  const auto seconds = [&](const std::string& device) {
    options.device = device;
    double sum = 0;
    for (const auto& stage : ExpectedStages(config, plan, options)) sum += stage.seconds;
    return sum;
  };
  const double cpu = seconds("cpu"), gpu = seconds("cuda:0");
  if (Threads() <= 16) {
    EXPECT_GT(cpu, gpu);
  }
  options.calibration_windows *= 4;
  EXPECT_GT(seconds("cpu"), 2 * cpu);  // its time is that of tokens
  EXPECT_LT(seconds("cuda:0"), 1.5 * gpu);
}

}  // namespace
}  // namespace nibble
