// SPDX-License-Identifier: Apache-2.0
#include "quantize/learn/learn_rotation.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "transforms/blas.h"

namespace nibble {
namespace {

constexpr int64_t kInputRows = 2048;  // of an input
constexpr int64_t kStepRows = 128;    // rows of an input in one step
constexpr int64_t kSums = 16;  // of gradients, at a time; fixed, so that threads do not matter

// The gradient of the objective, summed over some sets.
class Gradient {
 public:
  explicit Gradient(const DenseMath& math)
      : math_(math), x_(math.allocator()), y_(math.allocator()), sum_(math.allocator()) {}

  // The sum becomes, or grows by, the derivative of batch `step` of `set` by R [n, n].
  void Add(const PeakedRows& set, int64_t step, const float* r, bool first) {
    const int64_t count = std::min(kStepRows, set.rows.rows), batches = set.rows.rows / count;
    const int64_t n = set.rows.cols, values = count * n, group = set.group == 0 ? n : set.group;
    const float* const x =
        math_.Load({set.rows.row(step % batches * count).data(), static_cast<size_t>(values)}, x_);
    math_.Multiply({.a = x,
                    .b = r,
                    .transposed = DenseProduct::Transposed::kB,
                    .rows = count,
                    .inner = n,
                    .cols = n,
                    .out = y_.Grow(values)});
    math_.PeakGradients(values, group, y_.data());
    const double scale = set.weight * static_cast<double>(group) / static_cast<double>(values);
    math_.Multiply({.a = y_.data(),
                    .b = x,
                    .transposed = DenseProduct::Transposed::kA,
                    .rows = n,
                    .inner = count,
                    .cols = n,
                    .factor = static_cast<float>(scale),
                    .accumulate = !first,
                    .out = sum_.Grow(n * n)});
  }
  float* sum() const { return sum_.data(); }  // [n, n]

 private:
  const DenseMath& math_;
  Buffer<float> x_, y_;  // a batch, and R x or the derivatives by it
  Buffer<float> sum_;
};

// Descent over rotations: R <- exp(O) R with O skew, a momentum of normalized gradients scaled to
// the length of the step, as a share of |R|.
class Descent {
 public:
  Descent(const DenseMath& math, int64_t n) : math_(math), n_(n) {
    for (Buffer<float>* m : {&r_, &momentum_, &skew_, &moved_, &twice_}) {
      *m = Buffer<float>(math.allocator());
      m->Grow(n * n);
    }
    Matrix<float> identity(n, n);
    for (int64_t i = 0; i < n; ++i) identity.row(i)[static_cast<size_t>(i)] = 1;
    Buffer<float> copy(math.allocator());
    math.Combine(0, 1, math.Load(identity.data, copy), n * n, r_.data());
  }

  const float* rotation() const { return r_.data(); }  // [n, n]

  void Step(const float* gradient, double length) {
    using enum DenseProduct::Transposed;
    const int64_t count = n_ * n_;
    float *const r = r_.data(), *const momentum = momentum_.data(), *const moved = moved_.data(),
                 *const twice = twice_.data();
    Multiply(gradient, r, kB, moved);
    math_.Skew(moved, n_, skew_.data());
    const auto share = static_cast<float>(1 / (math_.Length(skew_.data(), count) + 1e-30));
    math_.Combine(started_ ? 0.9f : 0, share, skew_.data(), count, momentum);
    started_ = true;
    const auto scale = static_cast<float>(-length * std::sqrt(static_cast<double>(n_)) /
                                          (math_.Length(momentum, count) + 1e-30));
    Multiply(momentum, r, kNone, moved);
    Multiply(momentum, moved, kNone, twice);
    math_.Combine(scale * scale / 2, scale, moved, count, twice);
    math_.Combine(1, 1, twice, count, r);
    // One step of Newton and Schulz back to the orthogonal matrices: (3 - R R^T) R / 2.
    Multiply(r, r, kB, moved);
    Multiply(moved, r, kNone, twice);
    math_.Combine(1.5f, -0.5f, twice, count, r);
  }

 private:
  // c = a b, all [n, n].
  void Multiply(const float* a, const float* b, DenseProduct::Transposed transposed, float* c) {
    math_.Multiply({a, b, transposed, n_, n_, n_, 1, false, c});
  }

  const DenseMath& math_;
  int64_t n_;
  Buffer<float> r_, momentum_, skew_, moved_, twice_;
  bool started_ = false;
};

// The orthogonal matrix near `almost`: Newton and Schulz's steps until fp64 has no more to give.
Matrix<double> Orthogonal(const Matrix<float>& almost) {
  Matrix<double> r(almost.rows, almost.cols), square = r;
  std::copy(almost.data.begin(), almost.data.end(), r.data.begin());
  for (int i = 0; i < 3; ++i) {
    const Matrix<double> last = r;
    Multiply(last, last, true, square);
    Multiply(square, last, false, r, -0.5, 1.5);
  }
  return r;
}

double Power(const std::vector<float>& values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

// Mean squared output of a row of x, from the first of them.
double OutputPower(const Matrix<float>& x, const Matrix<float>& w) {
  const int tokens = static_cast<int>(std::min(kStepRows, x.rows));
  const int n = static_cast<int>(w.rows), k = static_cast<int>(w.cols);
  std::vector<float> y(static_cast<size_t>(tokens) * static_cast<size_t>(n));
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, tokens, n, k, 1, x.data.data(), k,
              w.data.data(), k, 0, y.data(), n);
  return Power(y) / tokens + 1e-30;
}

// The squared step of a quantizer, in relation to its range and to one of 4 bits.
double SquaredStep(const FormatSpec& format) {
  return std::ldexp(1.0, 2 * (4 - format.bits));
}

// All rows of the set's weights in random order.
Matrix<float> WeightRows(const FloatLayer& layer, LinearSet set) {
  std::vector<std::span<const double>> rows;
  for (Role role : RolesOf(set)) {
    const Matrix<double>& w = layer[role];
    for (int64_t n = 0; n < w.rows; ++n) rows.push_back(w.row(n));
  }
  const auto count = static_cast<int64_t>(rows.size());
  Matrix<float> result(count, static_cast<int64_t>(rows[0].size()));
  const std::vector<int64_t> order = Rng(0).Permutation(count);
  for (int64_t n = 0; n < count; ++n) {
    const auto row = rows[static_cast<size_t>(order[static_cast<size_t>(n)])];
    std::copy(row.begin(), row.end(), result.row(n).begin());
  }
  return result;
}

}  // namespace

std::vector<PeakedRows> CollectPeakedRows(Backend& backend, const ModelConfig& config,
                                          const Plan& plan, const Rotator& rotator,
                                          std::span<const int32_t> ids, int64_t context,
                                          const std::function<void(int64_t)>& progress) {
  const int64_t tokens = std::min(static_cast<int64_t>(ids.size()), kRotationWindows * context);
  Stream stream(backend, config, plan, rotator.embedding(), ids.first(static_cast<size_t>(tokens)),
                context, false);
  std::vector<PeakedRows> sets;
  Matrix<float> all(tokens, config.hidden_size);
  for (int64_t i = 0; i < config.layers; ++i) {
    progress(i);
    const FloatLayer layer = rotator.Layer(i);
    const LayerWeights stored = StoreFloats(layer);
    stream.Walk(stored, i, [&](LinearSet set) {
      if (set.kind == LinearSet::kO || set.kind == LinearSet::kDown) return;  // behind no norm
      const LinearPlan& linear = plan.at(i, RolesOf(set)[0]);
      const FormatSpec &activations = linear.activations, &weight = linear.weights;
      if (!activations.quantized() && !weight.quantized()) return;
      int64_t seen = 0;
      for (int64_t w = 0; w < stream.windows(); ++w) {
        const auto [x, count] = stream.Input(set, w);
        if (count == 0) continue;
        std::copy_n(backend.Read(x, count * all.cols), count * all.cols, all.row(seen).data());
        seen += count;
      }
      if (seen == 0) return;
      std::vector<int64_t> picked = Rng(0).Permutation(seen);
      picked.resize(static_cast<size_t>(std::min(seen, kInputRows)));
      Matrix<float> rows(static_cast<int64_t>(picked.size()), all.cols);
      for (size_t t = 0; t < picked.size(); ++t) {
        std::ranges::copy(all.row(picked[t]), rows.row(static_cast<int64_t>(t)).begin());
      }
      Matrix<float> weights = WeightRows(layer, set);
      const double outputs = OutputPower(rows, weights), inputs = Power(rows.data) / rows.rows;
      const double by_inputs = Power(weights.data) / outputs * SquaredStep(activations);
      const double by_weights = inputs * weights.rows / outputs * SquaredStep(weight);
      sets.push_back({std::move(rows), by_inputs, activations.group});
      sets.push_back({std::move(weights), by_weights, weight.group});
    });
  }
  return sets;
}

double LearningBytes(const ModelConfig& c, int64_t context) {
  const int64_t ffns = std::max<int64_t>(c.router.all(), 1);
  const int64_t read = (1 + ffns) * kInputRows + c.outputs(0, Role::kQ) +
                       2 * c.outputs(0, Role::kK) + 2 * ffns * c.ffn_size();
  const int64_t rows = c.layers * read + kRotationWindows * context + (kSums + 10) * c.hidden_size;
  return static_cast<double>(rows * c.hidden_size) * sizeof(float);
}

double LearningFlops(const ModelConfig& c) {
  const double n = static_cast<double>(c.hidden_size);
  const double sets = static_cast<double>(c.layers * (1 + std::max<int64_t>(c.router.all(), 1)));
  return kRotationSteps * (sets * 8 * kStepRows * n * n + 10 * n * n * n);
}

Matrix<double> LearnRotation(std::span<const PeakedRows> sets, const DenseMath& math,
                             const std::function<void(int64_t)>& progress) {
  constexpr double kFirstLength = 0.04;
  const int64_t n = sets[0].rows.cols;
  Descent descent(math, n);
  std::vector<Gradient> gradients;
  while (gradients.size() < std::min(sets.size(), static_cast<size_t>(kSums))) {
    gradients.emplace_back(math);
  }
  for (int64_t step = 0; step < kRotationSteps; ++step) {
    math.ForEach(gradients.size(), [&](size_t i) {
      for (size_t set = i; set < sets.size(); set += gradients.size()) {
        gradients[i].Add(sets[set], step, descent.rotation(), set == i);
      }
    });
    for (size_t i = 1; i < gradients.size(); ++i) {
      math.Combine(1, 1, gradients[i].sum(), n * n, gradients[0].sum());
    }
    const double done = static_cast<double>(step) / kRotationSteps;
    descent.Step(gradients[0].sum(), kFirstLength * (1 - done));
    progress(step + 1);
  }
  Matrix<float> rotation(n, n);
  math.Store(descent.rotation(), rotation.data);
  return Orthogonal(rotation);
}

}  // namespace nibble
