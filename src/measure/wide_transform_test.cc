// SPDX-License-Identifier: Apache-2.0
// Widths of real models on a GPU, where down's transform is a product in fp16: logits of random
// networks beside the CPU's, whose transform is fp32.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compute/gpu_testing.h"
#include "engine/session.h"
#include "measure/random_network.h"
#include "models/families/shapes.h"

namespace nibble {
namespace {

constexpr int64_t kTokens = 48;

Network WideNetwork(int64_t width, int a_bits) {
  ModelConfig config = FindShape("llama2-7b");
  config.layers = 2, config.hidden_size = 512, config.vocab_size = 1000;
  config.heads = config.kv_heads = 4;
  config.intermediate_size = width;
  Recipe recipe = kQuarotRecipe;
  recipe.activations.bits = a_bits;
  recipe.k.bits = recipe.v.bits = 16;
  return RandomNetwork(config, recipe, 7);
}

std::vector<double> LogitsOf(Model& model) {
  Session session(model);
  std::vector<double> logits;
  for (int64_t i = 0; i < kTokens; ++i) {
    const auto id = static_cast<int32_t>(i * 37 % 1000);
    const auto row = session.Append({&id, 1});
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

// Mean KL divergence of the softmax of rows, in nats.
double Divergence(std::span<const double> p, std::span<const double> q, size_t width) {
  const auto log_sum = [](std::span<const double> row) {
    double sum = 0;
    for (const double x : row) sum += std::exp(x);
    return std::log(sum);
  };
  double total = 0;
  for (size_t at = 0; at < p.size(); at += width) {
    const auto a = p.subspan(at, width), b = q.subspan(at, width);
    const double shift = log_sum(b) - log_sum(a), norm = log_sum(a);
    for (size_t i = 0; i < width; ++i) total += std::exp(a[i] - norm) * (a[i] - b[i] + shift);
  }
  return total / static_cast<double>(p.size() / width);
}

double Power(std::span<const double> values) {
  double squares = 0;
  for (const double x : values) squares += x * x;
  return squares / static_cast<double>(values.size());
}

// The error of logits, relative to the root of the mean square of `expected`.
double ErrorOf(std::span<const double> expected, std::vector<double> logits) {
  for (size_t i = 0; i < logits.size(); ++i) logits[i] -= expected[i];
  return std::sqrt(Power(logits) / Power(expected));
}

class WideTransform : public testing::TestWithParam<int64_t> {};

// Where some codes differ by a step, the next inputs differ more: in some layers two ways to
// compute the same numbers come as far apart as two roundings to 8 bits. The difference of two such
// errors has twice the variance of one, and KL divergences of small differences are half a
// variance.
TEST_P(WideTransform, CostsNoMoreThanRoundingDoes) {
  std::unique_ptr<Backend> backend = GpuOrNull();
  if (!backend) GTEST_SKIP() << "needs a GPU";
  Model cpu(WideNetwork(GetParam(), 8), MakeBackend("cpu", false));
  Model exact(WideNetwork(GetParam(), 16), MakeBackend("cpu", false));
  Model gpu(WideNetwork(GetParam(), 8), std::move(backend));
  const std::vector<double> expected = LogitsOf(cpu), logits = LogitsOf(gpu);
  const std::vector<double> unrounded = LogitsOf(exact);
  const double error = ErrorOf(expected, logits), rounding = ErrorOf(expected, unrounded);
  const double kl = Divergence(expected, logits, 1000);
  const double rounding_kl = Divergence(expected, unrounded, 1000);
  const std::string text =
      fmt::format("errors {:.4f}, {:.4f}; KL {:.6f}, {:.6f}", error, rounding, kl, rounding_kl);
  EXPECT_LT(error, std::sqrt(2) * rounding) << text;
  EXPECT_LT(kl, 2 * rounding_kl) << text;
  RecordProperty("text", text);
}

INSTANTIATE_TEST_SUITE_P(Widths, WideTransform, testing::Values(11008, 14336, 28672),
                         [](const auto& name) { return std::to_string(name.param); });

}  // namespace
}  // namespace nibble
