// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/expected_stages.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "quantize/learn/learn_rotation.h"
#include "quantize/learn/learn_scales.h"
#include "quantize/map/channels.h"
#include "quantize/map/invariance.h"
#include "quantize/plan/choose_cache.h"
#include "quantize/plan/choose_clips.h"
#include "quantize/plan/choose_transforms.h"
#include "quantize/walk/input_sample.h"
#include "quantize/walk/loss_weights.h"
#include "quantize/walk/output_clips.h"

namespace nibble {
namespace {

// Operations that a layer takes, of one kind each.
struct Work {
  double linear = 0;     // of products, per token
  double attention = 0;  // per token and key
  double gram = 0;       // per token
  double weights = 0;    // to round
  double rounding = 0;   // of GPTQ's products
};

Work WorkOf(const ModelConfig& c, const Recipe& recipe) {
  const double streams = recipe.gptaq > 0 ? 2 : 1;
  const double routed = c.router.experts == 0 ? 1
                                              : static_cast<double>(c.router.experts_per_token) /
                                                    static_cast<double>(c.router.experts);
  // GPTQ's loop and the two sums of its loss; a sweep; the correction of GPTAQ.
  const double passes = 3 + 2.0 * recipe.sweeps + (recipe.gptaq > 0 ? 4 : 0);
  const int64_t last = c.layers - 1;
  Work work = {.attention = streams * 4 * static_cast<double>(c.outputs(last, Role::kQ))};
  for (LinearSet set : LinearSets(c, last)) {
    const double share = set.expert < 0 || set.expert >= c.router.experts ? 1 : routed;
    const auto k = static_cast<double>(c.inputs(last, RolesOf(set)[0]));
    const auto sums = static_cast<double>(HessiansOf(recipe, set));
    work.gram += sums * share * k * k * (recipe.gptaq > 0 ? 3 : 1);
    work.rounding += sums * k * k * k;
    for (Role role : RolesOf(set)) {
      const auto weights = static_cast<double>(c.outputs(last, role)) * k;
      work.linear += streams * 2 * share * weights;
      work.weights += weights;
      work.rounding += passes * weights * k;
    }
  }
  return work;
}

// Of a layer, behind which others are left to be tuned: all but down.
constexpr double kTunedSets = 3;

// Operations per second of the kinds of work.
struct Rates {
  double floats;     // passes of layers in fp32, their inputs looked at
  double integers;   // passes of rounded layers
  double gram;       // Hessians
  double rounding;   // products of GPTQ
  double learning;   // there and back
  double predicted;  // of models whose predictions are compared
  // On the CPU, whatever the device: passes in fp32, weights of layers that are folded and rotated,
  // those on their way to a GPU and back, and those of layers and of tables that are rounded to
  // nearest.
  double host_floats, made, moved, plain, table;
  double start;  // seconds until the device is ready
};
// On two cores with AVX-512 the stages of SmolLM2-135M and Gemma 3 270M were timed (`quantize
// --progress json`), on an H200 with 16 cores whole runs of both and of `ref`
// (bench/results/2026-11-29-quality-levels.md).
constexpr double kCpuCores = 2, kGpuCores = 16;
constexpr Rates kCpu = {.floats = 4.3e10,
                        .integers = 1.5e11,
                        .gram = 1.8e11,
                        .rounding = 8e10,
                        .learning = 1e11,
                        .predicted = 6.8e10,
                        .host_floats = 4.3e10,
                        .made = 5.5e7,
                        .moved = 1e15,
                        .plain = 1.2e7,
                        .table = 2.8e7,
                        .start = 1};
constexpr Rates kGpu = {.floats = 2e13,
                        .integers = 2e13,
                        .gram = 4e13,
                        .rounding = 1e13,
                        .learning = 4e12,
                        .predicted = 2e12,
                        .host_floats = 3e11,
                        .made = 1e8,
                        .moved = 1.2e7,
                        .plain = 5e7,
                        .table = 4e7,
                        .start = 2};

// The rates of this machine, if its cores are like those.
Rates RatesHere(bool gpu) {
  Rates rates = gpu ? kGpu : kCpu;
  const double faster = Threads() / (gpu ? kGpuCores : kCpuCores);
  for (double* rate : {&rates.host_floats, &rates.made, &rates.moved, &rates.plain, &rates.table}) {
    *rate *= faster;
  }
  if (gpu) return rates;
  for (double* rate : {&rates.floats, &rates.integers, &rates.gram, &rates.rounding,
                       &rates.learning, &rates.predicted}) {
    *rate *= faster;
  }
  return rates;
}

}  // namespace

std::vector<ProgressJob::Stage> ExpectedStages(const ModelConfig& c, const Plan& plan,
                                               const QuantizeOptions& options) {
  const Recipe& recipe = options.recipe;
  const Rates rates = RatesHere(options.device != "cpu");
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
  add(recipe.searches_scales(), "search",
      made + pass(kStatisticsWindows) +
          layers * plain.weights * (recipe.scale_steps + 1) *
              (2 * kSampledTokens / rates.host_floats + 1 / rates.table));
  add(recipe.falls_back(), "transforms", 2 * pass(kTransformWindows));
  add(recipe.arranges_channels(), "statistics", made + pass(kStatisticsWindows));
  const auto checked = static_cast<double>(kCheckedWindows * CheckedContext(c));
  add(recipe.maps(), "exactness", made + 4 * checked * layers * plain.linear / rates.host_floats);
  add(recipe.searches_clips(), "clips", 2 * pass(kClipWindows));
  add(recipe.loss_groups > 0, "gradients", 6 * parameters * tokens / rates.learning);
  const double forward = (work.linear + work.attention * keys) / rates.integers;
  const double calibrated = tokens * (forward + work.gram / rates.gram);
  const bool gptq = recipe.rounding == Rounding::kGptq;
  // Weights that are rounded for trials of clips, and in each step of layers that learn.
  const double steps = recipe.block_epochs * static_cast<double>(options.calibration_windows);
  const double trials = (recipe.output_clips ? kTriedOutputClips : 0) + steps;
  const double prepared =
      layers * plain.weights * trials / rates.table +
      (recipe.output_clips ? pass(kStatisticsWindows) : 0) +
      6 * parameters * tokens * recipe.block_epochs / rates.learning +
      kTunedSets * 6 * layers * plain.weights * tokens * recipe.tune_epochs / rates.learning;
  add(gptq, "quantize",
      prepared +
          layers * (calibrated + work.rounding / rates.rounding + plain.weights / rates.moved));
  add(!gptq, "quantize", prepared + layers * plain.weights / rates.plain);
  const auto ids = static_cast<int64_t>(tokens);
  add(LearnsScales(recipe, c, ids), "scales",
      2 * parameters * ScaleLearningTokens(recipe, c, ids) / rates.learning);
  add(recipe.chooses_cache(), "cache",
      2 * parameters * static_cast<double>(CacheChoiceTokens(c, plan)) / rates.predicted);
  const auto table = static_cast<double>(c.vocab_size * c.hidden_size);
  const auto measured = static_cast<double>(options.loss_tokens);
  add(options.device != "cpu", "tables", table / rates.table);
  add(measured > 0, "rounding", layers * plain.weights / rates.plain + table / rates.table);
  add(measured > 0, "divergence", 2 * parameters * measured / rates.predicted);
  return stages;
}

}  // namespace nibble
