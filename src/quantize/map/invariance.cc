// SPDX-License-Identifier: Apache-2.0
#include "quantize/map/invariance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "quantize/walk/stream.h"
#include "tensor/finite.h"

namespace nibble {
namespace {

// The source's layer in fp32, whatever kernels its own type has.
LayerWeights LayerInFloats(LayerWeights layer) {
  for (auto& [role, linear] : layer.linears) linear = InFloats(linear);
  return layer;
}

// The error of a product, relative to its size: that of some rows of x [tokens, K] with a linear's
// weights, beside fp64.
double ProductError(Backend& backend, const PackedLinear& linear, std::span<const float> x) {
  const Matrix<float> w = Decode(linear.weights);
  const int64_t tokens = std::min<int64_t>(8, static_cast<int64_t>(x.size()) / w.cols);
  Buffer<float> y(backend.allocator());
  y.Grow(tokens * w.rows);
  const InputSpec plain = {.width = w.cols};
  const LinearId id = backend.Upload({.weights = linear.weights, .bias = {}, .input = plain});
  backend.Gemm(backend.PrepareActs({.x = x.data()}, tokens, plain), id, y.data(), w.rows, false);
  backend.Release(id);
  double errors = 0, squares = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const std::span row(x.data() + t * w.cols, static_cast<size_t>(w.cols));
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

// Outputs of a network, [tokens, N], with x as it is and perturbed.
struct Outputs {
  std::span<const float> clean, perturbed;
};

Matrix<double> ToRows(std::span<const float> values, int64_t tokens) {
  Matrix<double> rows(tokens, static_cast<int64_t>(values.size()) / tokens);
  std::ranges::copy(values, rows.data.begin());
  return rows;
}

// One network at one depth.
class Twins {
 public:
  Twins(Backend& backend, const ModelConfig& config, const Plan& plan,
        const EmbeddingRows& embedding, std::span<const int32_t> ids)
      : clean_(backend, config, plan, embedding, ids, CheckedContext(config), false),
        perturbed_(backend, config, plan, embedding, ids, CheckedContext(config), false) {}

  // A tie between experts, decided otherwise, would be no bug.
  void Follow(Twins& leader) {
    if (&leader != this) clean_.Follow(leader.clean_);
    perturbed_.Follow(leader.clean_);
  }
  void Set(const Matrix<double>& x) {
    std::ranges::transform(x.data, clean_.host_x().begin(),
                           [](double value) { return static_cast<float>(value); });
  }
  void Perturb(double error, Rng& rng) {
    std::ranges::transform(clean_.host_x(), perturbed_.host_x().begin(), [&](float value) {
      return static_cast<float>(value * (1 + error * rng.Normal()));
    });
  }
  void Pass(const LayerWeights& layer, int64_t index) {
    clean_.Pass(layer, index);
    perturbed_.Pass(layer, index);
  }
  Outputs x() { return {clean_.host_x(), perturbed_.host_x()}; }

 private:
  Stream clean_, perturbed_;
};

// The difference of one part of the mapped network from the source's, by tokens.
class Comparison {
 public:
  Comparison(std::string part, int64_t tokens)
      : part_(std::move(part)), tokens_(static_cast<size_t>(tokens)) {}

  // Some or all of the outputs; turned: those of the source in the basis of the mapped network.
  void Add(const Matrix<double>& turned, const Outputs& source, const Outputs& mapped) {
    if (!AllFinite(source.clean) || !AllFinite(source.perturbed))
      Fail("{} gives out infinity, weights are too large", part_);
    if (!AllFinite(mapped.clean) || !AllFinite(mapped.perturbed)) {
      Fail(
          "{} gives out infinity, weights are too large for norms or rotations folded into them; "
          "use --rotation none",
          part_);
    }
    const auto cols = static_cast<size_t>(turned.cols);
    for (size_t t = 0; t < tokens_.size(); ++t) {
      Squares& sums = tokens_[t];
      for (size_t i = t * cols; i < (t + 1) * cols; ++i) {
        sums.output += Square(turned.data[i]);
        sums.change += Square(turned.data[i] - mapped.clean[i]);
        sums.rounding += Square(source.clean[i] - source.perturbed[i]) +
                         Square(mapped.clean[i] - mapped.perturbed[i]);
      }
    }
  }
  // Throws where the part does not compute the same; otherwise `worst` stays that of two parts.
  void Finish(Invariance& worst) const {
    Invariance part = {.part = part_};
    for (const Squares& sums : tokens_) {
      if (sums.change == 0) continue;  // as where all is 0
      const double size = std::sqrt(sums.output) + 1e-300;
      const Invariance token = {.part = part_,
                                .change = std::sqrt(sums.change) / size,
                                .rounding = std::sqrt(sums.rounding) / size};
      if (part.change == 0 || token.change * part.rounding > part.change * token.rounding) {
        part = token;
      }
    }
    if (!(part.change <= part.limit())) {
      Fail(
          "folding, rotation or the order of channels changed what {} computes by {:.1e} of its "
          "size, rounding by {:.1e} at most; this is a bug in the model's description, please "
          "report it",
          part_, part.change, part.limit());
    }
    if (worst.change == 0 || part.change * worst.rounding > worst.change * part.rounding) {
      worst = part;
    }
  }

 private:
  struct Squares {
    double output = 0, change = 0, rounding = 0;
  };
  static double Square(double x) { return x * x; }

  std::string part_;
  std::vector<Squares> tokens_;
};

// A block of the head at a time: all of it in floats may be larger than a layer.
class Heads {
 public:
  Heads(Backend& backend, const ModelConfig& config, int64_t tokens)
      : backend_(backend), config_(config), tokens_(tokens) {}

  void Compare(const Rotator& source, const Rotator& mapped, Outputs x, Outputs mapped_x,
               Comparison& comparison) {
    constexpr int64_t kBlock = 4096;
    for (int64_t first = 0; first < config_.vocab_size; first += kBlock) {
      const int64_t rows = std::min(kBlock, config_.vocab_size - first);
      const Logits a = Block(source, first, rows, x), b = Block(mapped, first, rows, mapped_x);
      comparison.Add(ToRows(a.clean, tokens_), {a.clean, a.perturbed}, {b.clean, b.perturbed});
    }
  }

 private:
  struct Logits {
    std::vector<float> clean, perturbed;  // [tokens, rows]
  };
  Logits Block(const Rotator& model, int64_t first, int64_t rows, const Outputs& x) {
    PackedLinear block = {.input = {.width = config_.hidden_size}};
    block.weights = {.format = {.bits = 32}, .rows = rows, .cols = config_.hidden_size};
    block.weights.values = Tensor::Of(DType::kF32, {rows, config_.hidden_size},
                                      model.TableRows(Role::kHead, first, rows).data);
    const LinearId id = backend_.Upload(block);
    const Buffer<float> norm = ToBackend(backend_, model.FinalNorm());
    const auto logits = [&](std::span<const float> values) {
      Buffer<float> y(backend_.allocator());
      y.Grow(tokens_ * rows);
      const ActsSource normed = Normed(config_, norm, values.data());
      const Activations acts = backend_.PrepareActs(normed, tokens_, block.input);
      backend_.Gemm(acts, id, y.data(), rows, false);
      return std::vector(y.data(), y.data() + y.size());
    };
    Logits result = {logits(x.clean), logits(x.perturbed)};
    backend_.Release(id);
    return result;
  }

  Backend& backend_;
  const ModelConfig& config_;
  int64_t tokens_;
};

constexpr double kOpsOfLayer = 8;  // whose errors add up as independent ones do

}  // namespace

// docs/numerics.md has what the ratio was of right maps and of planted mistakes.
double Invariance::limit() const {
  return 50 * rounding;
}

Invariance CheckInvariance(const Network& source, const Rotator& rotator, const FloatLayers& layers,
                           const Plan& plan, Backend& backend, uint64_t seed) {
  const ModelConfig& c = source.config;
  const int64_t tokens = kCheckedWindows * CheckedContext(c);
  Rng rng(seed, 7);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(c.vocab_size))));
  }
  const Plan plain = SourcePlan(plan);
  const Rotator as_it_is(source, Recipe{}, plain, 0);
  Twins exact(backend, c, plain, as_it_is.embedding(), ids);
  Twins mapped(backend, c, plan, rotator.embedding(), ids);
  exact.Follow(exact), mapped.Follow(exact);
  double error = 0x1p-24;
  Invariance worst;
  const auto perturb = [&] { exact.Perturb(error, rng), mapped.Perturb(error, rng); };
  const auto compare = [&](const std::string& part) {
    Comparison comparison(part, tokens);
    const Matrix<double> x = rotator.Turn(ToRows(exact.x().clean, tokens));
    comparison.Add(x, exact.x(), mapped.x());
    comparison.Finish(worst);
    mapped.Set(x);
  };
  perturb(), compare("the embedding");
  for (int64_t i = 0; i < c.layers; ++i) {
    LayerWeights layer = LayerInFloats(source.layers[static_cast<size_t>(i)]);
    if (i == 0) {
      const double of_product = ProductError(backend, layer[Role::kQ], exact.x().clean);
      error = std::max(of_product, 0x1p-24) * std::sqrt(kOpsOfLayer);
    }
    perturb();
    exact.Pass(layer, i);
    layer = {};
    layer = StoreFloats(layers(i));  // all that stays of it in fp64
    mapped.Pass(layer, i);
    compare(fmt::format("layer {}", i));
  }
  perturb();
  Comparison logits("the head", tokens);
  Heads(backend, c, tokens).Compare(as_it_is, rotator, exact.x(), mapped.x(), logits);
  logits.Finish(worst);
  return worst;
}

}  // namespace nibble
