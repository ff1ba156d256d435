// SPDX-License-Identifier: Apache-2.0
#include "quantize/learn_rotation.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/thread_pool.h"

namespace nibble {
namespace {

constexpr int64_t kWindows = 8, kRows = 2048;  // rows of an input, from so many windows
constexpr int64_t kSteps = 300, kBatch = 256;  // rows of an input in one step
constexpr int64_t kSums = 16;  // of gradients, at a time; fixed, so that threads do not matter

// |y|_10^2, and its derivative in place of y.
double PeakSlope(std::span<float> y) {
  float most = 1e-30f;
  for (const float v : y) most = std::max(most, v * v);
  float sum = 0;  // of (y^2 / most)^5
  for (const float v : y) {
    const float q = v * v / most, q2 = q * q;
    sum += q2 * q2 * q;
  }
  const float root = std::pow(sum, 0.2f), factor = 2 * root / sum;
  for (float& v : y) {
    const float q = v * v / most, q2 = q * q;
    v *= factor * q2 * q2;
  }
  return static_cast<double>(most) * root;
}

// Of the objective, summed over some sets.
struct Gradient {
  Matrix<float> rows;      // R x, then the derivatives by it; [batch, n]
  Matrix<float> rotation;  // derivative by R, [n, n]

  // Of batch `step` of `set`.
  void Add(const PeakedRows& set, int64_t step, const Matrix<float>& r) {
    const int64_t count = std::min(kBatch, set.rows.rows), batches = set.rows.rows / count;
    const float* const x = set.rows.row(step % batches * count).data();
    const int n = static_cast<int>(r.cols), b = static_cast<int>(count);
    rows = Matrix<float>(count, r.cols);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, b, n, n, 1, x, n, r.data.data(), n, 0,
                rows.data.data(), n);
    const auto group = static_cast<size_t>(set.group == 0 ? r.cols : set.group);
    for (size_t i = 0; i < rows.data.size(); i += group) PeakSlope({&rows.data[i], group});
    const double scale =
        set.weight * static_cast<double>(group) / static_cast<double>(rows.data.size());
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, n, b, static_cast<float>(scale),
                rows.data.data(), n, x, n, 1, rotation.data.data(), n);
  }
};

// c = a b or, transposed, a b^T; all [n, n].
void Multiply(const Matrix<float>& a, const Matrix<float>& b, bool transposed, Matrix<float>& c) {
  constexpr int64_t kTask = 64;  // rows
  const int n = static_cast<int>(b.cols);
  ParallelFor(static_cast<size_t>((a.rows + kTask - 1) / kTask), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * kTask;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans,
                static_cast<int>(std::min(kTask, a.rows - first)), n, n, 1, a.row(first).data(), n,
                b.data.data(), n, 0, c.row(first).data(), n);
  });
}

template <typename T>
Matrix<T> Transposed(const Matrix<T>& m) {
  Matrix<T> t(m.cols, m.rows);
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) {
      t.row(j)[static_cast<size_t>(i)] = m.row(i)[static_cast<size_t>(j)];
    }
  }
  return t;
}

double Length(const Matrix<float>& m) {
  return std::sqrt(std::inner_product(m.data.begin(), m.data.end(), m.data.begin(), 0.0));
}

// Descent over rotations: R <- exp(O) R with O skew, a momentum of normalized gradients scaled to
// the length of the step, as a share of |R|.
class Descent {
 public:
  explicit Descent(int64_t n) : r_(n, n), momentum_(n, n), skew_(n, n), moved_(n, n), twice_(n, n) {
    for (int64_t i = 0; i < n; ++i) r_.row(i)[static_cast<size_t>(i)] = 1;
  }

  const Matrix<float>& rotation() const { return r_; }

  void Step(const Matrix<float>& gradient, double length) {
    Multiply(gradient, r_, true, moved_);
    const Matrix<float> turned = Transposed(moved_);
    for (size_t i = 0; i < skew_.data.size(); ++i) skew_.data[i] = moved_.data[i] - turned.data[i];
    const auto share = static_cast<float>(1 / (Length(skew_) + 1e-30));
    for (size_t i = 0; i < skew_.data.size(); ++i) {
      momentum_.data[i] = 0.9f * momentum_.data[i] + share * skew_.data[i];
    }
    const auto scale = static_cast<float>(-length * std::sqrt(static_cast<double>(r_.cols)) /
                                          (Length(momentum_) + 1e-30));
    Multiply(momentum_, r_, false, moved_);
    Multiply(momentum_, moved_, false, twice_);
    for (size_t i = 0; i < r_.data.size(); ++i) {
      r_.data[i] += scale * moved_.data[i] + scale * scale / 2 * twice_.data[i];
    }
    // One step of Newton and Schulz back to the orthogonal matrices: (3 - R R^T) R / 2.
    Multiply(r_, r_, true, moved_);
    Multiply(moved_, r_, false, twice_);
    for (size_t i = 0; i < r_.data.size(); ++i) {
      r_.data[i] = 1.5f * r_.data[i] - 0.5f * twice_.data[i];
    }
  }

 private:
  Matrix<float> r_, momentum_, skew_, moved_, twice_;
};

// The same steps until fp64 has no more to give.
Matrix<double> Orthogonal(const Matrix<float>& almost) {
  const int n = static_cast<int>(almost.cols);
  Matrix<double> r(n, n), square(n, n);
  std::copy(almost.data.begin(), almost.data.end(), r.data.begin());
  for (int i = 0; i < 3; ++i) {
    const Matrix<double> last = r;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1, last.data.data(), n,
                last.data.data(), n, 0, square.data.data(), n);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, -0.5, square.data.data(), n,
                last.data.data(), n, 1.5, r.data.data(), n);
  }
  return r;
}

// At most `count` of `rows` in random order.
std::vector<int64_t> PickRows(int64_t rows, int64_t count) {
  std::vector<int64_t> picked(static_cast<size_t>(rows));
  std::iota(picked.begin(), picked.end(), 0);
  Rng rng(0);
  for (size_t i = picked.size(); i > 1; --i) std::swap(picked[i - 1], picked[rng.Below(i)]);
  picked.resize(static_cast<size_t>(std::min(rows, count)));
  return picked;
}

double Power(const std::vector<float>& values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

// Mean squared output of a row of x, from the first of them.
double OutputPower(const Matrix<float>& x, const Matrix<float>& w) {
  const int tokens = static_cast<int>(std::min(kBatch, x.rows));
  const int n = static_cast<int>(w.rows), k = static_cast<int>(w.cols);
  std::vector<float> y(static_cast<size_t>(tokens) * static_cast<size_t>(n));
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, tokens, n, k, 1, x.data.data(), k,
              w.data.data(), k, 0, y.data(), n);
  return Power(y) / tokens + 1e-30;
}

// Of a quantizer, in relation to its range and to one of 4 bits.
double SquaredStep(const FormatSpec& format) {
  return std::ldexp(1.0, 2 * (4 - format.bits));
}

// All rows of the set's weights in random order.
Matrix<float> WeightRows(const FloatLayer& layer, LinearSet set) {
  std::vector<std::span<const double>> rows;
  for (Role role : RolesOf(set)) {
    const Matrix<double>& w = layer.weights[static_cast<size_t>(role)];
    for (int64_t n = 0; n < w.rows; ++n) rows.push_back(w.row(n));
  }
  const auto count = static_cast<int64_t>(rows.size());
  Matrix<float> result(count, static_cast<int64_t>(rows[0].size()));
  const std::vector<int64_t> order = PickRows(count, count);
  for (int64_t n = 0; n < count; ++n) {
    const auto row = rows[static_cast<size_t>(order[static_cast<size_t>(n)])];
    std::copy(row.begin(), row.end(), result.row(n).begin());
  }
  return result;
}

}  // namespace

std::vector<PeakedRows> CollectPeakedRows(Backend& backend, const ModelConfig& config,
                                          const Plan& plan, const Rotator& rotator,
                                          std::span<const int32_t> ids, int64_t context) {
  const int64_t tokens = std::min(static_cast<int64_t>(ids.size()), kWindows * context);
  const std::vector<int64_t> picked = PickRows(tokens, kRows);
  const BackendRope rope(backend, BuildRope(config.rope, context));
  const Plan float_plan = FloatPlan(plan);
  Stream stream(backend, config, float_plan, rope.view(), rotator.Embedding(),
                ids.first(static_cast<size_t>(tokens)), context, false);
  std::vector<PeakedRows> sets;
  Matrix<float> all(tokens, config.hidden_size);
  for (int64_t i = 0; i < config.layers; ++i) {
    const FloatLayer layer = rotator.Layer(i);
    const StoredLayer stored = StoreFloats(layer);
    stream.Begin(stored, i);
    for (LinearSet set : kLinearSets) {
      const bool normed = set == LinearSet::kQkv || set == LinearSet::kMlp;
      for (int64_t w = 0; w < stream.windows(); ++w) {
        stream.Advance(set, w);
        if (!normed) continue;
        const float* x = backend.Read(stream.Input(set, w), context * all.cols);
        std::copy_n(x, context * all.cols, all.row(w * context).data());
      }
      for (Role role : RolesOf(set)) stream.Upload(role, stored[role]);
      const LinearPlan& linear = plan.at(i, RolesOf(set)[0]);
      const FormatSpec &activation = linear.activations, &weight = linear.weights;
      if (!normed || !(activation.quantized() || weight.quantized())) continue;
      Matrix<float> rows(static_cast<int64_t>(picked.size()), all.cols);
      for (size_t t = 0; t < picked.size(); ++t) {
        std::ranges::copy(all.row(picked[t]), rows.row(static_cast<int64_t>(t)).begin());
      }
      Matrix<float> weights = WeightRows(layer, set);
      const double outputs = OutputPower(rows, weights), inputs = Power(rows.data) / rows.rows;
      const double by_inputs = Power(weights.data) / outputs * SquaredStep(activation);
      const double by_weights = inputs * weights.rows / outputs * SquaredStep(weight);
      sets.push_back({std::move(rows), by_inputs, activation.group});
      sets.push_back({std::move(weights), by_weights, weight.group});
    }
    stream.Finish();
  }
  return sets;
}

double LearningBytes(const ModelConfig& c, int64_t context) {
  const int64_t read =
      2 * kRows + c.outputs(Role::kQ) + 2 * c.outputs(Role::kK) + 2 * c.intermediate_size;
  const int64_t rows = c.layers * read + kWindows * context + (kSums + 10) * c.hidden_size;
  return static_cast<double>(rows * c.hidden_size) * sizeof(float);
}

double LearningFlops(const ModelConfig& c) {
  const double n = static_cast<double>(c.hidden_size);
  return kSteps * (2.0 * static_cast<double>(c.layers) * 8 * kBatch * n * n + 10 * n * n * n);
}

Matrix<double> LearnRotation(std::span<const PeakedRows> sets,
                             const std::function<void(double)>& progress) {
  constexpr double kFirstLength = 0.04;
  const int64_t n = sets[0].rows.cols;
  Descent descent(n);
  Matrix<float> sum(n, n);
  std::vector<Gradient> gradients(std::min(sets.size(), static_cast<size_t>(kSums)));
  for (int64_t step = 0; step < kSteps; ++step) {
    ParallelFor(gradients.size(), [&](size_t i) {
      gradients[i].rotation = Matrix<float>(n, n);
      for (size_t set = i; set < sets.size(); set += gradients.size()) {
        gradients[i].Add(sets[set], step, descent.rotation());
      }
    });
    ParallelFor(static_cast<size_t>(n), [&](size_t row) {
      const auto to = sum.row(static_cast<int64_t>(row));
      std::ranges::fill(to, 0.0f);
      for (const Gradient& gradient : gradients) {
        const auto from = gradient.rotation.row(static_cast<int64_t>(row));
        for (size_t j = 0; j < to.size(); ++j) to[j] += from[j];
      }
    });
    const double done = static_cast<double>(step) / kSteps;
    descent.Step(sum, kFirstLength * (1 - done));
    progress(static_cast<double>(step + 1) / kSteps);
  }
  return Orthogonal(descent.rotation());
}

}  // namespace nibble
