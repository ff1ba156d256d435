// SPDX-License-Identifier: Apache-2.0
#include "quantize/plan/choose_clips.h"

#include <cblas.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "base/thread_pool.h"
#include "quantize/walk/stream.h"

namespace nibble {
namespace {

constexpr int kSketch = 64;

// P = sum of W^T R over the linears of a set, R [N, kSketch] of random signs: |E P|^2 / kSketch is
// |E W^T|^2 on average over R, and the same R for all clips leaves little noise between them.
Matrix<float> SketchWeights(const FloatLayer& layer, LinearSet set) {
  const int64_t width = layer[RolesOf(set)[0]].cols;
  const int k = static_cast<int>(width);
  Matrix<double> sum(width, kSketch);
  for (Role role : RolesOf(set)) {
    const Matrix<double>& w = layer[role];
    Rng rng(0, static_cast<uint64_t>(role));
    const auto signs = rng.Signs(static_cast<size_t>(w.rows * kSketch));
    const std::vector<double> r(signs.begin(), signs.end());
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, k, kSketch, static_cast<int>(w.rows), 1,
                w.data.data(), k, r.data(), kSketch, 1, sum.data.data(), kSketch);
  }
  Matrix<float> sketch(width, kSketch);
  std::copy(sum.data.begin(), sum.data.end(), sketch.data.begin());
  return sketch;
}

// x P [tokens, kSketch] for x [tokens, K].
Matrix<float> Sketch(const float* x, int64_t tokens, const Matrix<float>& p) {
  constexpr int64_t kRows = 64;  // of one task
  Matrix<float> y(tokens, kSketch);
  ParallelFor(static_cast<size_t>((tokens + kRows - 1) / kRows), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * kRows;
    const int rows = static_cast<int>(std::min(kRows, tokens - first));
    const int k = static_cast<int>(p.rows);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, kSketch, k, 1, x + first * k, k,
                p.data.data(), kSketch, 0, y.row(first).data(), kSketch);
  });
  return y;
}

// Sketches of the set's inputs in all windows, quantized to `activations` (or not).
std::vector<Matrix<float>> SketchInputs(Backend& backend, Stream& stream, LinearSet set,
                                        const FormatSpec& activations, const Matrix<float>& p) {
  std::vector<Matrix<float>> sketches;
  for (int64_t w = 0; w < stream.windows(); ++w) {
    const auto [x, tokens] = stream.Input(set, w, activations);
    if (tokens > 0) sketches.push_back(Sketch(backend.Read(x, tokens * p.rows), tokens, p));
  }
  return sketches;
}

double SquaredDistance(const std::vector<Matrix<float>>& a, const std::vector<Matrix<float>>& b) {
  double sum = 0;
  for (size_t w = 0; w < a.size(); ++w) {
    sum =
        std::transform_reduce(a[w].data.begin(), a[w].data.end(), b[w].data.begin(), sum,
                              std::plus<>(), [](double x, double y) { return (x - y) * (x - y); });
  }
  return sum;
}

// 8-bit weights, tails as planned, in place of the rounded ones: near enough, and every backend has
// kernels for them.
Plan StandIns(Plan plan) {
  for (auto& [name, linear] : plan.linears) {
    if (linear.activations.quantized()) {
      linear.weights = {.bits = 8, .group = linear.activations.group};
    } else {
      linear.weights = {.bits = 32};
      linear.tail = {};
    }
  }
  return plan;
}

}  // namespace

double BestClip(const std::function<double(double)>& error) {
  std::map<int, double> known;  // by percent
  const auto at = [&](int percent) {
    const auto [it, added] = known.try_emplace(percent, 0);
    if (added) it->second = error(percent / 100.0);
    return it->second;
  };
  int best = 90;
  for (const int step : {10, 3, 1}) {
    for (const int move : {-step, step}) {
      while (best + move >= 30 && best + move <= 100 && at(best + move) < at(best)) best += move;
    }
  }
  return best / 100.0;
}

void ChooseClips(Backend& backend, const ModelConfig& config, const EmbeddingRows& embedding,
                 const FloatLayers& layers, std::span<const int32_t> ids, int64_t context,
                 Plan& plan, const std::function<void(double)>& progress) {
  const size_t tokens = std::min(ids.size(), static_cast<size_t>(kClipWindows * context));
  const Plan stand_ins = StandIns(plan);
  Stream stream(backend, config, plan, embedding, ids.first(tokens), context, true);
  for (int64_t i = 0; i < config.layers; ++i) {
    const FloatLayer layer = layers(i);
    const LayerWeights stored = StoreNearest(layer, stand_ins, i);
    const auto sets = static_cast<double>(LinearSets(config, i).size());
    double done = 0;
    stream.Walk(stored, i, [&](LinearSet set) {
      progress(static_cast<double>(i) + done++ / sets);
      FormatSpec activations = plan.at(i, RolesOf(set)[0]).activations;
      if (!activations.quantized() || activations.clip != 0) return;
      const Matrix<float> sketch = SketchWeights(layer, set);
      const auto exact = SketchInputs(backend, stream, set, {}, sketch);
      activations.clip = BestClip([&](double clip) {
        activations.clip = clip;
        return SquaredDistance(exact, SketchInputs(backend, stream, set, activations, sketch));
      });
      for (Role role : RolesOf(set)) plan.linears[LinearName(i, role)].activations = activations;
    });
    progress(static_cast<double>(i + 1));
  }
}

}  // namespace nibble
