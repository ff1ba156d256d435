// SPDX-License-Identifier: Apache-2.0
#include "quantize/invariance.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/rng.h"
#include "quantize/stream.h"
#include "tensor/finite.h"

namespace nibble {
namespace {

// Rows of a head.
using HeadRows = std::function<Tensor(int64_t first, int64_t count)>;

// A block of the head at a time: all of it in floats may be larger than a layer.
std::vector<float> LogitsOf(Backend& backend, const ModelConfig& config, const float* x,
                            int64_t rows, const std::vector<float>& norm, const HeadRows& head) {
  constexpr int64_t kBlock = 4096;
  Buffer<float> logits(backend.allocator());
  const int64_t vocab = config.vocab_size, count = rows * vocab;
  logits.Grow(count);
  const Buffer<float> weight = ToBackend(backend, norm);
  for (int64_t first = 0; first < vocab; first += kBlock) {
    PackedLinear block = {.input = {.width = config.hidden_size}};
    block.weights = {.format = {.bits = 32},
                     .rows = std::min(kBlock, vocab - first),
                     .cols = config.hidden_size};
    block.weights.values = head(first, block.weights.rows);
    const LinearId id = backend.Upload(block);
    const Activations acts = backend.PrepareActs(Normed(config, weight, x), rows, block.input);
    backend.Gemm(acts, id, logits.data() + first, vocab, false);
    backend.Release(id);
  }
  const float* values = backend.Read(logits.data(), count);
  return {values, values + count};
}

// Largest difference over the standard deviation of `a`, of the first rows if `b` has fewer.
double RelativeChange(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0, sum = 0, squares = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
    sum += a[i];
    squares += static_cast<double>(a[i]) * a[i];
  }
  const double n = static_cast<double>(b.size()), mean = sum / n;
  return largest / std::sqrt(std::max(squares / n - mean * mean, 1e-30));
}

// The source's layer in fp32, whatever kernels its own type has.
LayerWeights LayerInFloats(LayerWeights layer) {
  for (auto& [role, linear] : layer.linears) linear = InFloats(linear);
  return layer;
}

// The error of a product, relative to its size: that of some rows of x [tokens, K] with a linear's
// weights, beside fp64.
double ProductError(Backend& backend, const PackedLinear& linear, const float* x) {
  constexpr int64_t kTokens = 8;
  const Matrix<float> w = Decode(linear.weights);
  Buffer<float> y(backend.allocator());
  y.Grow(kTokens * w.rows);
  const InputSpec plain = {.width = w.cols};
  const LinearId id = backend.Upload({.weights = linear.weights, .bias = {}, .input = plain});
  backend.Gemm(backend.PrepareActs({.x = x}, kTokens, plain), id, y.data(), w.rows, false);
  backend.Release(id);
  double errors = 0, squares = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    const std::span row(x + t * w.cols, static_cast<size_t>(w.cols));
    for (int64_t n = 0; n < w.rows; ++n) {
      const double exact =
          std::inner_product(row.begin(), row.end(), w.row(n).begin(), 0.0, std::plus<>(),
                             [](float a, float b) { return static_cast<double>(a) * b; });
      errors += std::pow(y.data()[t * w.rows + n] - exact, 2);
      squares += exact * exact;
    }
  }
  return std::sqrt(errors / std::max(squares, 1e-300));
}

// The same network twice: all windows, and the first one with x perturbed behind each layer.
class Twins {
 public:
  Twins(Backend& backend, const ModelConfig& config, const Plan& plan,
        const EmbeddingRows& embedding, std::span<const int32_t> ids, Rng& rng)
      : clean_(backend, config, plan, embedding, ids, CheckedContext(config), false),
        perturbed_(backend, config, plan, embedding,
                   ids.first(static_cast<size_t>(CheckedContext(config))), CheckedContext(config),
                   false),
        rng_(rng) {}

  // A tie between experts, decided otherwise, would be no bug.
  void Follow(const Stream& leader) {
    if (&leader != &clean_) clean_.Follow(leader);
    perturbed_.Follow(leader);
  }
  void Pass(const LayerWeights& layer, int64_t index, double error) {
    clean_.Pass(layer, index);
    perturbed_.Pass(layer, index);
    for (float& x : perturbed_.host_x()) x *= static_cast<float>(1 + error * rng_.Normal());
  }
  const Stream& clean() const { return clean_; }
  const Stream& perturbed() const { return perturbed_; }

 private:
  Stream clean_, perturbed_;
  Rng& rng_;
};

constexpr double kOpsOfLayer = 8;  // whose errors add up as independent ones do

}  // namespace

// Of ten million logits; docs/numerics.md has what the ratio was.
double Invariance::limit() const {
  return 10 * rounding;
}

Invariance CheckInvariance(const Network& source, const Rotator& rotator, const FloatLayers& layers,
                           const Plan& plan, Backend& backend, uint64_t seed) {
  const ModelConfig& c = source.config;
  const int64_t context = CheckedContext(c);
  Rng rng(seed, 7);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kCheckedWindows * context; ++i) {
    ids.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(c.vocab_size))));
  }
  const Plan plain = SourcePlan(plan);
  const Rotator as_it_is(source, Recipe{}, plain, 0);
  Twins exact(backend, c, plain, as_it_is.embedding(), ids, rng);
  Twins mapped(backend, c, plan, rotator.embedding(), ids, rng);
  exact.Follow(exact.clean()), mapped.Follow(exact.clean());
  double error = 0;
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerWeights own = LayerInFloats(source.layers[static_cast<size_t>(i)]);
    if (i == 0) {
      error = std::max(ProductError(backend, own[Role::kQ], exact.clean().x()), 0x1p-24) *
              std::sqrt(kOpsOfLayer);
    }
    exact.Pass(own, i, error);
    const LayerWeights layer = StoreFloats(layers(i));  // which is all that stays of it
    mapped.Pass(layer, i, error);
  }
  const auto logits = [&](const Stream& stream, const Rotator& model) {
    const HeadRows rows = [&](int64_t first, int64_t count) {
      return Tensor::Of(DType::kF32, {count, c.hidden_size},
                        model.TableRows(Role::kHead, first, count).data);
    };
    return LogitsOf(backend, c, stream.x(), stream.windows() * context, model.FinalNorm(), rows);
  };
  const auto a = logits(exact.clean(), as_it_is), b = logits(mapped.clean(), rotator);
  if (!AllFinite(a) || !AllFinite(b)) {
    Fail("{}: logits are not finite, weights are too large{}", source.directory,
         AllFinite(a) ? " for norms or rotations folded into them; use --rotation none" : "");
  }
  const Invariance result = {
      .change = RelativeChange(a, b),
      .rounding = std::hypot(RelativeChange(a, logits(exact.perturbed(), as_it_is)),
                             RelativeChange(b, logits(mapped.perturbed(), rotator)))};
  if (result.change >= result.limit()) {
    Fail(
        "folding, rotation or the order of channels changed the logits by {:.1e} of their "
        "deviation, rounding by {:.1e} at most; this is a bug in the model's description, please "
        "report it",
        result.change, result.limit());
  }
  return result;
}

}  // namespace nibble
