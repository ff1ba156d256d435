// SPDX-License-Identifier: Apache-2.0
#include "quantize/invariance.h"

#include <algorithm>
#include <cmath>

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

// Largest difference over the standard deviation of `a`.
double RelativeChange(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0, sum = 0, squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
    sum += a[i];
    squares += static_cast<double>(a[i]) * a[i];
  }
  const double n = static_cast<double>(a.size()), mean = sum / n;
  return largest / std::sqrt(std::max(squares / n - mean * mean, 1e-30));
}

// The source's layer in fp32, whatever kernels its own type has.
LayerWeights LayerInFloats(LayerWeights layer) {
  for (auto& [role, linear] : layer.linears) linear = InFloats(linear);
  return layer;
}

}  // namespace

double InvarianceLimit(const ModelConfig& c) {
  int64_t inputs = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    for (const Role role : c.layer_roles(layer)) inputs = std::max(inputs, c.inputs(layer, role));
  }
  constexpr double kDeviations = 6, kAmplified = 5;
  const double ops = 8 * static_cast<double>(c.layers);
  return kDeviations * kAmplified * std::sqrt(ops) *
         (std::sqrt(static_cast<double>(inputs)) * 0x1p-24 + 0x1p-17);
}

double CheckInvariance(const Network& source, const Rotator& rotator, const FloatLayers& layers,
                       const Plan& plan, Backend& backend) {
  const ModelConfig& c = source.config;
  const int64_t context = CheckedContext(c);
  Rng rng(0, 7);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kCheckedWindows * context; ++i) {
    ids.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(c.vocab_size))));
  }
  Plan plain = plan;  // the source: no online transforms
  for (auto& [name, linear] : plain.linears) linear.input_transform = {};
  plain.kv_rotation = {};
  const Rotator as_it_is(source, Recipe{}, plain, 0);
  Stream exact(backend, c, plain, as_it_is.embedding(), ids, context, false);
  Stream rotated(backend, c, plan, rotator.embedding(), ids, context, false);
  rotated.Follow(exact);  // a tie between experts, decided otherwise, would be no bug
  for (int64_t i = 0; i < c.layers; ++i) {
    exact.Pass(LayerInFloats(source.layers[static_cast<size_t>(i)]), i);
    const LayerWeights layer = StoreFloats(layers(i));  // which is all that stays of it
    rotated.Pass(layer, i);
  }
  const auto rows_of = [&](const Rotator& model) -> HeadRows {
    return [&](int64_t first, int64_t count) {
      return Tensor::Of(DType::kF32, {count, c.hidden_size},
                        model.TableRows(Role::kHead, first, count).data);
    };
  };
  const int64_t rows = kCheckedWindows * context;
  const std::vector<float> norm = ToF32(source.final_norm).data;
  const auto a = LogitsOf(backend, c, exact.x(), rows, norm, rows_of(as_it_is));
  const auto b = LogitsOf(backend, c, rotated.x(), rows,
                          plan.norms_folded ? std::vector<float>() : norm, rows_of(rotator));
  if (!AllFinite(a) || !AllFinite(b)) {
    Fail("{}: logits are not finite, weights are too large{}", source.directory,
         AllFinite(a) ? " for norms or rotations folded into them; use --rotation none" : "");
  }
  const double change = RelativeChange(a, b);
  if (change >= InvarianceLimit(c)) {
    Fail(
        "folding, rotation or the order of channels changed the logits by {:.1e} of their "
        "deviation, rounding by {:.1e} at most; this is a bug in the model's description, please "
        "report it",
        change, InvarianceLimit(c));
  }
  return change;
}

}  // namespace nibble
