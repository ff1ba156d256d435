// SPDX-License-Identifier: Apache-2.0
// One layer of random weights through `nibble quantize`, from the float weights to the codes.
#include <sys/resource.h>

#include "apps/bench/bench.h"
#include "base/progress.h"
#include "measure/random_network.h"
#include "models/families/shapes.h"
#include "quantize/map/rotate.h"
#include "quantize/plan/make_plan.h"
#include "quantize/walk/calibrate.h"
#include "transforms/blas.h"
#include "transforms/orthogonal.h"

namespace nibble::cli {
namespace {

struct Stage {
  const char* name;
  double seconds;
};

// A float network as `quantize` opens one: RandomNetwork folds its norms away.
Network FloatNetwork(const BenchArguments& a, const std::vector<float>& ones) {
  BenchArguments wide = a;
  wide.layers = 1;
  Recipe recipe = BenchRecipe(wide);
  recipe.weights = {.bits = 16};
  recipe.rules.clear(), recipe.asked.clear();  // they would round, or change nothing
  Network net = RandomNetwork(BenchShape(wide), recipe, 1);
  net.config_json = {{"model_type", net.config.family}};
  for (LayerWeights& layer : net.layers) {
    for (LayerVector norm : net.config.layer_vectors(0)) {
      layer.vectors[norm] = Tensor::Of(DType::kF32, {net.config.width(0, norm)}, ones);
    }
  }
  return net;
}

double PeakMemory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

}  // namespace

void RunQuantizing(const BenchArguments& a, const Common& common) {
  PrepareBlas();
  const int64_t layers = a.layers > 0 ? a.layers : FindShape(a.shape).layers;
  const std::vector<float> ones(static_cast<size_t>(BenchShape(a).hidden_size), 1.0f);
  Network net = FloatNetwork(a, ones);
  const Recipe recipe = BenchRecipe(a);
  const Plan plan = MakePlan(net.config, recipe);
  const auto backend = MakeBackend(common.device, false);
  Rotator rotator(net, recipe, plan, 0);
  // The identity stands for the rotation that is learned, and takes as long to apply.
  if (recipe.learns_rotation()) rotator.Follow(IdentityMatrix(net.config.hidden_size));
  Calibration calibration(*backend, net.config, plan, recipe, rotator.embedding(),
                          RandomIds(net.config, a.windows * a.context), a.context);
  Progress progress("quantize", "layer tokens", static_cast<double>(a.windows * a.context));
  const auto start = std::chrono::steady_clock::now();
  FloatLayer layer = rotator.Layer(0);
  const double rotation = Seconds(start);
  // In a real run a model's pages go back to its files now.
  net.layers.clear();
  net.embedding = net.head.weights = {};
  std::map<Role, double> errors;
  calibration.Round(std::move(layer), 0, errors, [&](double share, std::string_view what) {
    progress.Update(share * static_cast<double>(a.windows * a.context), std::string(what));
  });
  const double total = Seconds(start);
  const CalibrationSeconds& s = calibration.seconds();
  const Stage stages[] = {{"rotation", rotation},
                          {"forward", s.inputs},
                          {"Hessians", s.sums},
                          {"GPTQ", s.rounding},
                          {"other", total - rotation - s.inputs - s.sums - s.rounding},
                          {"layer", total}};
  if (common.json) {
    Json json = {{"shape", a.shape}, {"layers", layers}, {"peak_bytes", PeakMemory()}};
    for (const Stage& stage : stages) json["seconds"][stage.name] = stage.seconds;
    return PrintJson(json);
  }
  std::vector<std::vector<std::string>> table = {{"stage", "s", "% of time"}};
  for (const Stage& stage : stages) {
    table.push_back({stage.name, fmt::format("{:.2f}", stage.seconds),
                     fmt::format("{:.0f}", 100 * stage.seconds / total)});
  }
  fmt::print("{}peak memory {}; {} such layers: about {}\n", Table(table), BytesText(PeakMemory()),
             layers, DurationText(total * static_cast<double>(layers)));
}

}  // namespace nibble::cli
