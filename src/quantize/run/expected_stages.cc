// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/expected_stages.h"

#include <algorithm>

#include "quantize/learn/learn_rotation.h"
#include "quantize/learn/learn_scales.h"
#include "quantize/map/channels.h"
#include "quantize/map/invariance.h"
#include "quantize/plan/choose_cache.h"
#include "quantize/plan/choose_clips.h"
#include "quantize/plan/choose_transforms.h"
#include "quantize/run/work.h"

namespace nibble {
namespace {

// Operations per second of the kinds of work, as two cores with AVX-512 reach them.
constexpr double kFloats = 1e11;    // passes of layers in fp32
constexpr double kIntegers = 1e11;  // passes of rounded layers
constexpr double kGram = 1e11;      // Hessians
constexpr double kRounding = 1e11;  // products of GPTQ
constexpr double kLearning = 1e11;  // there and back
constexpr double kWeights = 1e8;    // weights folded and rotated, or rounded to nearest

}  // namespace

std::vector<ProgressJob::Stage> ExpectedStages(const ModelConfig& c, const Plan& plan,
                                               const QuantizeOptions& options) {
  const Recipe& recipe = options.recipe;
  const int64_t tokens = options.calibration_windows * options.context;
  const auto context = static_cast<double>(options.context);
  const auto layers = static_cast<double>(c.layers);
  const auto parameters = static_cast<double>(c.parameters());
  const Work plain = WorkOf(c, {}), work = WorkOf(c, recipe);
  const auto pass = [&](int64_t windows) {  // of all layers in fp32
    const auto count = static_cast<double>(std::min(windows * options.context, tokens));
    return count * layers * (plain.linear + plain.attention * context / 2) / kFloats;
  };
  const double made = layers * plain.weights / kWeights;  // all layers once
  std::vector<ProgressJob::Stage> stages;
  if (recipe.learns_rotation()) {
    stages.push_back({"rotation", made + pass(kRotationWindows) + LearningFlops(c) / kLearning});
  }
  if (recipe.reads_source()) stages.push_back({"statistics", pass(kStatisticsWindows)});
  if (recipe.falls_back()) stages.push_back({"transforms", made + 2 * pass(kTransformWindows)});
  if (recipe.arranges_channels()) {
    stages.push_back({"statistics", made + pass(kStatisticsWindows)});
  }
  if (recipe.maps()) {
    const auto checked = static_cast<double>(kCheckedWindows * CheckedContext(c));
    stages.push_back({"exactness", made + 4 * checked * layers * plain.linear / kFloats});
  }
  if (recipe.searches_clips()) stages.push_back({"clips", 2 * pass(kClipWindows)});
  if (recipe.loss_groups > 0) {
    stages.push_back({"gradients", 6 * parameters * static_cast<double>(tokens) / kLearning});
  }
  if (recipe.rounding == Rounding::kGptq) {
    const double forward =
        static_cast<double>(tokens) *
        ((work.linear + work.attention * context / 2) / kIntegers + work.gram / kGram);
    stages.push_back(
        {"quantize", layers * (forward + work.weights / kWeights + work.rounding / kRounding)});
  } else {
    stages.push_back({"quantize", made});
  }
  if (LearnsScales(recipe, c, tokens)) {
    stages.push_back(
        {"scales", 2 * parameters * ScaleLearningTokens(recipe, c, tokens) / kLearning});
  }
  if (recipe.chooses_cache()) {
    const auto read = static_cast<double>(CacheChoiceTokens(c, plan));
    stages.push_back({"cache", 2 * parameters * read / kIntegers});
  }
  if (options.loss_tokens > 0) {
    // The float model, the rounded one, and the one that is rounded to nearest first.
    const double read = 2 * parameters * static_cast<double>(options.loss_tokens);
    stages.push_back({"rounding", 2 * made});
    stages.push_back({"divergence", read / kFloats + 2 * read / kIntegers});
  }
  return stages;
}

}  // namespace nibble
