// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/time_estimate.h"

#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "compute/dense_math.h"
#include "compute/exact_backend.h"
#include "compute/math_services.h"
#include "io/sha256.h"
#include "quantize/learn/learn_rotation.h"
#include "quantize/learn/learn_scales.h"
#include "quantize/map/invariance.h"
#include "quantize/plan/choose_clips.h"
#include "quantize/plan/choose_transforms.h"
#include "quantize/plan/make_plan.h"
#include "quantize/run/estimate.h"
#include "quantize/run/work.h"
#include "quantize/walk/calibrate.h"
#include "quantize/walk/loss_weights.h"

namespace nibble {
namespace {

// Seconds until a GPU is ready and has the models on which the loss is measured; and the share of
// the rate of its products that learning reaches. For SmolLM2 on an H100
// (bench/results/2026-11-27-steps-h100.md).
constexpr double kDeviceSeconds = 2, kDeviceLearning = 0.12;

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The shortest of some tries if one does not take long: what else the machine does for a moment is
// no property of the run.
double BestSeconds(int tries, const std::function<void()>& work) {
  constexpr double kLong = 2;
  double best = SecondsOf(work);
  while (--tries > 0 && best < kLong) best = std::min(best, SecondsOf(work));
  return best;
}

// Layers like the last one, at most `width` wide, without biases and inputs of their own, and with
// keys and values.
ModelConfig Narrow(ModelConfig c, int64_t width) {
  c.biases.clear();
  c.layer_input_size = 0;
  std::erase(c.vectors, LayerVector::kPostLayerInputNorm);
  const HeadShape shape = c.head_shape(c.layers - 1);
  c.kv_heads = shape.kv_heads, c.head_dim = shape.head_dim;
  c.intermediate_size = c.outputs(c.layers - 1, Role::kGate);
  LayerSpec last = c.spec(c.layers - 1);
  last.kv_heads = last.head_dim = last.intermediate_size = 0, last.kv_layer = -1;
  c.specs = {last};
  if (c.hidden_size <= width) return c;
  const int64_t shared = c.heads / c.kv_heads;
  c.kv_heads = std::clamp<int64_t>(width / (c.head_dim * shared), 1, c.kv_heads);
  c.heads = c.kv_heads * shared;
  for (int64_t* size : {&c.intermediate_size, &c.expert_size}) {
    *size = std::max<int64_t>(1, *size * width / c.hidden_size / 128) * 128;
  }
  c.hidden_size = width;
  return c;
}

Matrix<float> RandomRows(int64_t rows, int64_t cols) {
  Rng rng(1);
  Matrix<float> m(rows, cols);
  for (float& value : m.data) value = static_cast<float>(rng.Uniform() - 0.5);
  return m;
}

FloatLayer RandomLayer(const ModelConfig& c, const Plan& plan) {
  FloatLayer layer;
  Rng rng(2);
  for (Role role : c.layer_roles(0)) {
    Matrix<double>& w = layer[role] = Matrix<double>(c.outputs(0, role), c.inputs(0, role));
    for (double& value : w.data) value = 0.1 * (rng.Uniform() - 0.5);
    if (!plan.at(0, role).gather) continue;
    layer.gathers[role] = Rng(0).Permutation<int32_t>(w.cols);
  }
  for (LayerVector norm : c.layer_vectors(0)) {
    if (plan.norms_folded && IsFoldable(norm)) continue;
    layer.vectors[norm] = std::vector<float>(static_cast<size_t>(c.width(0, norm)), 1);
  }
  return layer;
}

// One layer of random weights, calibrated on some windows.
struct Probe {
  ModelConfig config;
  double tokens;
  Work work;
  CalibrationSeconds seconds;

  double products() const { return tokens * work.linear; }
  double scores() const { return tokens * tokens / 2 * work.attention; }
};

LossWeights EqualWeights(const ModelConfig& c, const Recipe& recipe, int64_t tokens) {
  if (recipe.loss_groups == 0) return {};
  LossWeights weights(1);
  for (Role role : c.layer_roles(0)) {
    weights[0][role] = Matrix<float>(recipe.loss_groups, tokens);
    std::ranges::fill(weights[0][role].data, 1.0f);
  }
  return weights;
}

Probe RunProbe(Backend& backend, const ModelConfig& full, const QuantizeOptions& options,
               int64_t width, int64_t windows = 1) {
  const int64_t tokens = windows * options.context;
  Probe probe = {.config = Narrow(full, width), .tokens = static_cast<double>(tokens)};
  const ModelConfig& c = probe.config;
  probe.work = WorkOf(c, options.recipe);
  Plan plan = MakePlan(c, options.recipe);
  for (auto& [name, linear] : plan.linears) {  // clips that would be searched
    if (linear.activations.clip == 0) linear.activations.clip = 0.9;
  }
  const FloatLayer layer = RandomLayer(c, plan);
  const auto rows = [&](std::span<const int32_t> ids) {
    return RandomRows(static_cast<int64_t>(ids.size()), c.hidden_size);
  };
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    Calibration calibration(backend, c, plan, options.recipe, {rows},
                            std::vector<int32_t>(static_cast<size_t>(tokens)), options.context,
                            nullptr, EqualWeights(c, options.recipe, tokens));
    std::map<Role, double> errors;
    const double all =
        SecondsOf([&] { calibration.Round(layer, 0, errors, [](double, std::string_view) {}); });
    if (i == 0) continue;  // memory and kernels are new to it
    if (best == 0 || all < best) probe.seconds = calibration.seconds(), best = all;
  }
  return probe;
}

// a, b >= 0 with small |x a + y b - t| in both rows, exactly where that is possible.
struct Row {
  double x, y, t;
};
std::pair<double, double> Solve(const Row& p, const Row& q) {
  const double det = p.x * q.y - q.x * p.y;
  const double a = (p.t * q.y - q.t * p.y) / det, b = (p.x * q.t - q.x * p.t) / det;
  if (a > 0 && b > 0) return {a, b};  // false where det is 0
  const double both = (p.t + q.t) / (p.x + p.y + q.x + q.y);
  return a > b ? std::pair((p.t + q.t) / (p.x + q.x), 0.0)
               : (b > a ? std::pair(0.0, (p.t + q.t) / (p.y + q.y)) : std::pair(both, both));
}

// Measures a GPU, whose rates depend on the widths: a whole layer, by a few windows and by some
// more.
double DeviceCalibrationTime(Backend& backend, const ModelConfig& c,
                             const QuantizeOptions& options) {
  const int64_t windows = options.calibration_windows;
  const int64_t few = std::min<int64_t>(2, windows), more = std::min<int64_t>(8, windows);
  const auto forward = [](const CalibrationSeconds& s) { return s.inputs + s.sums; };
  const CalibrationSeconds a = RunProbe(backend, c, options, c.hidden_size, few).seconds;
  const CalibrationSeconds b = RunProbe(backend, c, options, c.hidden_size, more).seconds;
  if (few == more) return forward(b) + b.rounding;
  const double gradient = std::max(0.0, forward(b) - forward(a)) / static_cast<double>(more - few);
  return forward(b) + gradient * static_cast<double>(windows - more) + b.rounding;
}

double CalibrationTime(Backend& backend, const ModelConfig& c, const QuantizeOptions& options) {
  constexpr int64_t kWide = 768, kThin = 384;
  const Work full = WorkOf(c, options.recipe);
  const Probe thin = RunProbe(backend, c, options, std::min(kThin, c.hidden_size / 2));
  const Probe wide = RunProbe(backend, c, options, kWide);
  const auto [linear, attention] = Solve({thin.products(), thin.scores(), thin.seconds.inputs},
                                         {wide.products(), wide.scores(), wide.seconds.inputs});
  const auto [weights, rounding] =
      Solve({thin.work.weights, thin.work.rounding, thin.seconds.rounding},
            {wide.work.weights, wide.work.rounding, wide.seconds.rounding});
  const double gram = wide.seconds.sums / (wide.tokens * wide.work.gram);
  const auto context = static_cast<double>(options.context);
  const double tokens = static_cast<double>(options.calibration_windows) * context;
  return tokens *
             (linear * full.linear + attention * full.attention * context / 2 + gram * full.gram) +
         weights * full.weights + rounding * full.rounding;
}

// Seconds of the exactness check, without the rotation: two networks in floats, each of them twice.
double CheckTime(const Rotator& rotator, const ModelConfig& c, const Plan& plan,
                 const FloatLayer& layer) {
  const auto machine = MakeExactBackend();
  const int64_t context = CheckedContext(c);
  Stream stream(*machine, c, plan, rotator.embedding(),
                std::vector<int32_t>(static_cast<size_t>(kCheckedWindows * context)), context,
                false);
  return 4 * BestSeconds(2, [&] { stream.Pass(StoreFloats(layer), 0); });
}

// The number of times that a layer is folded and rotated, on average; for a layer that is kept,
// once.
double TimesMade(const ModelConfig& c, const Plan& plan, const QuantizeOptions& options,
                 int passes) {
  const double layers = static_cast<double>(c.layers) * WorkOf(c, options.recipe).weights;
  const double kept = KeptBytes(EstimateQuantization(c, plan, options), options);
  const double share = std::min(1.0, kept / (layers * sizeof(double)));
  return share + (1 - share) * passes;
}

// Seconds of rounding a layer to nearest, from some rows of each linear.
double NearestTime(const FloatLayer& layer, const Plan& plan, double weights) {
  constexpr int64_t kRows = 256;
  FloatLayer part = layer;
  double rounded = 0;
  for (auto& [role, w] : part.weights) {
    const int64_t rows = std::min(kRows, w.rows);
    Matrix<double> some(rows, w.cols);
    std::copy_n(w.data.begin(), some.data.size(), some.data.begin());
    w = std::move(some);
    part.biases[role] = {};
    rounded += static_cast<double>(w.data.size());
  }
  std::map<Role, double> errors;
  return BestSeconds(2, [&] { RoundLayerNearest(part, plan, 0, errors); }) * weights / rounded;
}

double TableTime(const Rotator& rotator, const Plan& plan, const ModelConfig& c) {
  double seconds = 0;
  for (Role role : c.model_roles()) {
    if (role == Role::kHead && plan.tied_head) continue;
    const FormatSpec& format = plan.at(0, role).weights;
    const int64_t all = c.outputs(0, role), rows = std::min<int64_t>(2048, all);
    const double of_some = BestSeconds(2, [&] {
      const Matrix<float> some = rotator.TableRows(role, 0, rows);
      Store(ToF64(Borrow(some)), format, rotator.half());
    });
    seconds += of_some * static_cast<double>(all) / static_cast<double>(rows);
  }
  return seconds;
}

// Floating-point operations per second of all threads.
double MeasuredFlops() {
  constexpr int kSize = 512;
  std::vector<float> a(kSize * kSize, 1.5f), b(a), c(a);
  const auto product = [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSize, kSize, kSize, 1, a.data(), kSize,
                b.data(), kSize, 0, c.data(), kSize);
  };
  return 2.0 * kSize * kSize * kSize / BestSeconds(10, product) * Threads();
}

// Operations per second of a GPU's dense math, at products of this model's widths.
double DeviceFlops(Backend& backend, const ModelConfig& c) {
  const std::unique_ptr<DenseMath> math = backend.services().MakeDense();
  if (math == nullptr) return MeasuredFlops();
  constexpr int64_t kTokens = 4096;
  const int64_t inner = c.hidden_size, cols = c.ffn_size();
  Buffer<float> a(math->allocator()), b(math->allocator()), out(math->allocator());
  const DenseProduct product = {.a = a.Grow(kTokens * inner),
                                .b = b.Grow(cols * inner),
                                .transposed = DenseProduct::Transposed::kB,
                                .rows = kTokens,
                                .inner = inner,
                                .cols = cols,
                                .out = out.Grow(kTokens * cols)};
  float waited = 0;
  const double seconds = BestSeconds(3, [&] {
    for (int i = 0; i < 10; ++i) math->Multiply(product);
    math->Store(product.out, {&waited, 1});
  });
  return 10 * 2.0 * static_cast<double>(kTokens * inner * cols) / seconds;
}

// Operations of what happens before and behind the layers.
double LearningWork(const ModelConfig& c, const Plan& plan, const QuantizeOptions& options) {
  const Recipe& recipe = options.recipe;
  const int64_t tokens = options.calibration_windows * options.context;
  const auto pass = [&](int64_t windows) {  // in fp32
    const Work work = WorkOf(c, {});
    const auto context = static_cast<double>(options.context);
    return static_cast<double>(std::min(windows * options.context, tokens) * c.layers) *
           (work.linear + work.attention * context / 2);
  };
  double flops = 0;
  if (recipe.reads_source()) flops += pass(kStatisticsWindows);
  if (recipe.arranges_channels()) flops += pass(kStatisticsWindows);
  if (recipe.falls_back()) flops += 2 * pass(kTransformWindows);
  if (recipe.searches_clips()) flops += 2 * pass(kClipWindows);
  if (recipe.learns_rotation()) flops += pass(kRotationWindows) + LearningFlops(c);
  if (recipe.loss_groups > 0) {  // there and back
    flops += 4 * static_cast<double>(c.parameters()) * static_cast<double>(tokens);
  }
  if (recipe.chooses_cache()) {
    flops += 2 * static_cast<double>(c.parameters() * CacheChoiceTokens(c, plan));
  }
  if (LearnsScales(recipe, c, tokens)) {
    flops += 2 * static_cast<double>(c.parameters()) * ScaleLearningTokens(recipe, c, tokens);
  }
  return flops;
}

}  // namespace

double EstimateSeconds(const Network& source, const Plan& plan, const QuantizeOptions& options) {
  const ModelConfig& c = source.config;
  const Recipe& recipe = options.recipe;
  Rotator rotator(source, recipe, plan, options.seed);
  // The identity stands for the rotation that is learned, and takes as long to apply.
  if (recipe.learns_rotation()) rotator.Follow(IdentityMatrix(c.hidden_size));
  FloatLayer layer;
  double per_layer = BestSeconds(2, [&] { layer = rotator.Layer(0); }) *
                     TimesMade(c, plan, options, LayerPasses(recipe));
  if (recipe.maps()) per_layer += CheckTime(rotator, c, plan, layer);
  const double weights = WorkOf(c, recipe).weights;
  if (recipe.rounding == Rounding::kGptq) {
    layer = {};
    const auto backend = MakeBackend(options.device, false);
    per_layer += options.device == "cpu" ? CalibrationTime(*backend, c, options)
                                         : DeviceCalibrationTime(*backend, c, options);
  } else {
    per_layer += NearestTime(layer, plan, weights);
  }
  double seconds = static_cast<double>(c.layers) * per_layer + TableTime(rotator, plan, c);
  const double work = LearningWork(c, plan, options);
  if (options.device == "cpu") {
    seconds += work / (0.7 * MeasuredFlops());
  } else {
    seconds += kDeviceSeconds;
    if (work > 0)
      seconds += work / (kDeviceLearning * DeviceFlops(*MakeBackend(options.device, false), c));
  }
  std::vector<std::byte> sample(size_t{8} << 20, std::byte{1});
  double bytes = 0;
  for (const std::string& path : source.store->paths()) {
    bytes += static_cast<double>(std::filesystem::file_size(path));
  }
  const double read = BestSeconds(2, [&] { Sha256(sample); }) / static_cast<double>(sample.size());
  return seconds + read * bytes;
}

}  // namespace nibble
