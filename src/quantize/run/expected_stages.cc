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

// Operations per second of the kinds of work: on two cores with AVX-512, where SmolLM2-135M and
// Gemma 3 270M were timed (`quantize --progress json`), and on an H200 with 16 cores beside it.
struct Rates {
  double floats;     // passes of layers in fp32, their inputs looked at
  double integers;   // passes of rounded layers
  double gram;       // Hessians
  double rounding;   // products of GPTQ
  double learning;   // there and back
  double made;       // weights of layers that are folded and rotated, on the CPU
  double plain;      // weights of layers that are loaded, and rounded to nearest, on the CPU
  double table;      // the same of the embedding
  double predicted;  // of models whose predictions are compared
  double start;      // seconds until the device is ready
};
constexpr Rates kCpu = {4.3e10, 1.5e11, 1.8e11, 8e10, 1e11, 5.5e7, 1.2e7, 2.8e7, 6.8e10, 1};
constexpr Rates kGpu = {4e11, 2e12, 4e12, 1e12, 5e12, 2e8, 1e8, 1e8, 2e12, 2};

}  // namespace

std::vector<ProgressJob::Stage> ExpectedStages(const ModelConfig& c, const Plan& plan,
                                               const QuantizeOptions& options) {
  const Recipe& recipe = options.recipe;
  const Rates& rates = options.device == "cpu" ? kCpu : kGpu;
  const auto tokens = static_cast<double>(options.calibration_windows * options.context);
  const auto layers = static_cast<double>(c.layers),
             keys = static_cast<double>(options.context) / 2;
  const auto parameters = static_cast<double>(c.parameters());
  const Work plain = WorkOf(c, {}), work = WorkOf(c, recipe);
  const auto pass = [&](int64_t windows) {  // of all layers in fp32
    const double count = std::min(tokens, static_cast<double>(windows * options.context));
    return count * layers * (plain.linear + plain.attention * keys) / rates.floats;
  };
  const double made = layers * plain.weights / rates.made;  // all layers once
  std::vector<ProgressJob::Stage> stages = {{"start", rates.start}};
  const auto add = [&](bool wanted, const char* title, double seconds) {
    if (wanted) stages.push_back({title, seconds});
  };
  add(recipe.learns_rotation(), "rotation",
      made + pass(kRotationWindows) + LearningFlops(c) / rates.learning);
  add(recipe.reads_source(), "statistics", pass(kStatisticsWindows));
  add(recipe.falls_back(), "transforms", 2 * pass(kTransformWindows));
  add(recipe.arranges_channels(), "statistics", made + pass(kStatisticsWindows));
  const auto checked = static_cast<double>(kCheckedWindows * CheckedContext(c));
  add(recipe.maps(), "exactness", made + 4 * checked * layers * plain.linear / kCpu.floats);
  add(recipe.searches_clips(), "clips", 2 * pass(kClipWindows));
  add(recipe.loss_groups > 0, "gradients", 6 * parameters * tokens / rates.learning);
  const double forward = (work.linear + work.attention * keys) / rates.integers;
  const double calibrated = tokens * (forward + work.gram / rates.gram);
  const bool gptq = recipe.rounding == Rounding::kGptq;
  add(gptq, "quantize", layers * (calibrated + work.rounding / rates.rounding));
  add(!gptq, "quantize", layers * plain.weights / rates.plain);
  const auto ids = static_cast<int64_t>(tokens);
  add(LearnsScales(recipe, c, ids), "scales",
      2 * parameters * ScaleLearningTokens(recipe, c, ids) / rates.learning);
  add(recipe.chooses_cache(), "cache",
      2 * parameters * static_cast<double>(CacheChoiceTokens(c, plan)) / rates.predicted);
  const auto table = static_cast<double>(c.vocab_size * c.hidden_size);
  const auto measured = static_cast<double>(options.loss_tokens);
  add(measured > 0, "rounding", layers * plain.weights / rates.plain + table / rates.table);
  add(measured > 0, "divergence", 2 * parameters * measured / rates.predicted);
  return stages;
}

}  // namespace nibble
