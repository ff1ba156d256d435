// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: which experts a token gets, and what becomes of it.
#include "engine/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <list>

#include "base/rng.h"
#include "compute/gpu_testing.h"
#include "engine/engine_testing.h"
#include "engine/model.h"
#include "engine/session.h"
#include "models/import/open_network.h"
#include "tests/shared_data.h"

namespace nibble {
namespace {

TEST(Routes, TheLargestLogitsWinAndTheFirstOfEqualOnes) {
  const std::vector<float> logits = {1,         3,   2, 0,  //
                                     5,         5,   5, 5,  //
                                     -INFINITY, NAN, 0, NAN};
  const Routes routes = ChooseExperts(logits, 3, {.experts = 4, .experts_per_token = 2});
  const std::vector<std::vector<int32_t>> rows = {{1, 2}, {0, 1}, {0, 2}, {}};
  ASSERT_EQ(routes.experts.size(), 4u);
  for (size_t e = 0; e < 4; ++e) EXPECT_EQ(routes.experts[e].rows, rows[e]) << e;
  const float larger = 1 / (1 + std::exp(-1.0f));  // softmax of 3 and 2
  EXPECT_NEAR(routes.experts[1].weights[0], larger, 1e-7);
  EXPECT_NEAR(routes.experts[2].weights[0], 1 - larger, 1e-7);
  EXPECT_EQ(routes.experts[0].weights[0], 0.5f);
  EXPECT_EQ(routes.experts[1].weights[1], 0.5f);
}

TEST(Routes, FollowersKeepTheExpertsAndWeighThemAnew) {
  const std::vector<float> logits = {1, 3, 2}, others = {4, 0, 1};
  const RouterSpec router = {.experts = 3, .experts_per_token = 2};
  const Routes chosen = ChooseExperts(logits, 1, router);
  const Routes routes = WeighExperts(others, chosen, router);
  EXPECT_TRUE(routes.experts[0].rows.empty());
  EXPECT_NEAR(routes.experts[2].weights[0], 1 / (1 + std::exp(-1.0f)), 1e-7);
  EXPECT_NEAR(routes.experts[1].weights[0] + routes.experts[2].weights[0], 1, 1e-7);
}

// DeepSeek V3's: a bias decides, weights are sigmoids without it, shared experts come last.
TEST(Routes, BiasesOnlyChooseAndSharedExpertsSeeEveryToken) {
  const RouterSpec router = {
      .experts = 3, .experts_per_token = 2, .shared = 1, .sigmoid = true, .scale = 3};
  const std::vector<float> logits = {2, 1, 0, 0, 0, 4}, bias = {-1, 0, 0.1f};
  const Routes routes = ChooseExperts(logits, 2, router, bias);
  ASSERT_EQ(routes.experts.size(), 4u);
  const std::vector<std::vector<int32_t>> rows = {{}, {0, 1}, {0, 1}, {0, 1}};
  for (size_t e = 0; e < 4; ++e) EXPECT_EQ(routes.experts[e].rows, rows[e]) << e;
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_NEAR(routes.experts[1].weights[0], 3 * sigmoid(1) / (sigmoid(1) + sigmoid(0)), 1e-6);
  EXPECT_NEAR(routes.experts[2].weights[1], 3 * sigmoid(4) / (sigmoid(4) + sigmoid(0)), 1e-6);
  EXPECT_EQ(routes.experts[3].weights, (std::vector<float>{1, 1}));
  RouterSpec plain = router;
  plain.normalized = false;
  EXPECT_NEAR(ChooseExperts(logits, 2, plain, bias).experts[2].weights[0], 1.5, 1e-6);
}

// fp32 matrices in memory.
class Matrices {
 public:
  PackedLinear Random(int64_t rows, int64_t cols) {
    Matrix<float>& m = matrices_.emplace_back(rows, cols);
    const double size = 1.5 / std::sqrt(static_cast<double>(cols));
    for (float& v : m.data) v = static_cast<float>(rng_.Normal() * size);
    PackedLinear linear;
    linear.weights = {
        .rows = rows,
        .cols = cols,
        .values = {DType::kF32, {rows, cols}, reinterpret_cast<const std::byte*>(m.data.data())}};
    linear.input.width = cols;
    return linear;
  }
  const Matrix<float>& last() const { return matrices_.back(); }
  float Normal() { return static_cast<float>(rng_.Normal()); }

 private:
  std::list<Matrix<float>> matrices_;
  Rng rng_{3};
};

std::vector<double> Times(const Matrix<float>& w, std::span<const double> x) {
  std::vector<double> y;
  for (int64_t n = 0; n < w.rows; ++n) {
    y.push_back(0);
    for (size_t k = 0; k < x.size(); ++k) y.back() += w.row(n)[k] * x[k];
  }
  return y;
}

// The reference takes transformers' order of steps, in fp64: softmax over all experts, then the
// largest two, then their sum divided out.
TEST(Mixture, IsTheWeightedSumOfTheChosenExperts) {
  ModelConfig c;
  c.layers = 1, c.hidden_size = 64, c.expert_size = 96, c.heads = c.kv_heads = 4, c.head_dim = 16;
  c.router = {.experts = 5, .experts_per_token = 2}, c.norm_eps = 1e-5;
  constexpr int64_t kTokens = 33;
  Matrices matrices;
  LayerWeights weights;
  ByRole<Matrix<float>> dense;
  for (Role role : c.layer_roles(0)) {
    weights[role] = matrices.Random(c.outputs(0, role), c.inputs(0, role));
    dense[role] = matrices.last();
  }
  std::vector<float> x(kTokens * 64);
  for (float& v : x) v = matrices.Normal();
  const std::vector<float> before = x;

  const auto backend = MakeBackend("cpu", true);
  const Layer layer = UploadLayer(*backend, c, 0, weights, {});
  Scratch scratch(*backend);
  const BackendRopes ropes(*backend, {}, 0);
  const Decoder decoder = {*backend, c, ropes, scratch};
  ForwardMlp(decoder, layer, kTokens, x.data());

  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<double> h(before.begin() + t * 64, before.begin() + (t + 1) * 64), sum = h;
    double squares = 0;
    for (const double v : h) squares += v * v;
    for (double& v : h) v /= std::sqrt(squares / 64 + c.norm_eps);
    std::vector<double> p = Times(dense[Role::kRouter], h);
    double all = 0, chosen = 0;
    for (double& v : p) all += v = std::exp(v);
    for (double& v : p) v /= all;
    std::vector<double> sorted = p;
    std::ranges::sort(sorted, std::greater());
    chosen = sorted[0] + sorted[1];
    for (int64_t e = 0; e < c.router.experts; ++e) {
      const double weight = p[static_cast<size_t>(e)] / chosen;
      if (p[static_cast<size_t>(e)] < sorted[1]) continue;
      std::vector<double> g = Times(dense[OfExpert(Role::kGate, e)], h);
      const std::vector<double> u = Times(dense[OfExpert(Role::kUp, e)], h);
      for (size_t i = 0; i < g.size(); ++i) g[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
      const std::vector<double> y = Times(dense[OfExpert(Role::kDown, e)], g);
      for (size_t i = 0; i < y.size(); ++i) sum[i] += weight * y[i];
    }
    // Sums of 64 and 96 products of order 1 in fp32, one behind the other: 96 * 2^-24 and less.
    for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(x[static_cast<size_t>(t) * 64 + i], sum[i], 3e-5);
  }
}

// The sample model, each FFN three times over behind a random router.
Network Upcycled(Matrices& matrices) {
  Network net = OpenNetwork(kTinyModel);
  net.config.router = {.experts = 3, .experts_per_token = 2};
  net.config.expert_size = net.config.intermediate_size;
  for (LayerWeights& layer : net.layers) {
    const LayerWeights ffn = layer;
    layer.linears = {};
    for (Role role : net.config.layer_roles(0)) {
      layer[role] =
          role == Role::kRouter ? matrices.Random(3, net.config.hidden_size) : ffn[KindOf(role)];
    }
  }
  return net;
}

// Logits of every token, by forward passes of `chunk` tokens.
std::vector<float> Logits(Model& model, std::span<const int32_t> ids, size_t chunk) {
  std::vector<float> all;
  KvCache cache = model.MakeCache();
  for (size_t i = 0; i < ids.size(); i += chunk) {
    const Model::Sequence part = {ids.subspan(i, std::min(chunk, ids.size() - i)), &cache};
    const float* x = model.Forward({&part, 1});
    const auto rows = static_cast<int64_t>(part.ids.size());
    const float* logits = model.Logits(x, rows);
    all.insert(all.end(), logits, logits + rows * model.config().vocab_size);
  }
  return all;
}

TEST(Mixture, EqualExpertsAreOneFfnAndChunksDoNotMatter) {
  Matrices matrices;
  const auto dense = LoadModel(kTinyModel, "cpu", false);
  Model mixture(Upcycled(matrices), MakeBackend("cpu", false));
  Rng rng(9);
  std::vector<int32_t> ids;
  for (int i = 0; i < 70; ++i) ids.push_back(static_cast<int32_t>(rng.Below(4096)));
  const std::vector<float> expected = Logits(*dense, ids, 70), logits = Logits(mixture, ids, 70);
  ASSERT_EQ(logits.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(logits[i]) - expected[i]));
  }
  // In each of six layers two shares of an output are rounded and added where one was: 12 times
  // 2^-24 of logits of up to 20, which later layers may enlarge a few times.
  EXPECT_LT(largest, 1e-4);
  EXPECT_EQ(Logits(mixture, ids, 23), logits);
}

// bf16 loses up to 2^-9 of q, k, v, gate and up in each of six layers, as in the dense model.
// Experts are alike, so that a tie that another rounding decides costs nothing.
TEST(Mixture, AGpuAgreesWithTheCpu) {
  std::unique_ptr<Backend> backend = GpuOrNull();
  if (!backend) GTEST_SKIP() << "needs a GPU";
  Matrices matrices;
  const auto cpu = LoadModel(kTinyModel, "cpu", false);
  Model gpu(Upcycled(matrices), std::move(backend));
  Rng rng(9);
  std::vector<int32_t> ids;
  for (int i = 0; i < 150; ++i) ids.push_back(static_cast<int32_t>(rng.Below(4096)));
  const std::vector<float> expected = Logits(*cpu, ids, 150);
  for (const size_t chunk : {150u, 1u}) {
    const std::vector<float> logits = Logits(gpu, ids, chunk);
    double squares = 0, errors = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      squares += std::pow(double{expected[i]}, 2);
      errors += std::pow(double{logits[i]} - expected[i], 2);
    }
    EXPECT_LT(std::sqrt(errors / squares), std::sqrt(5 * 6) * 0x1p-9) << chunk;
  }
}

// Goldens of transformers.
TEST(Mixture, MixtralGivesTheLogitsOfTransformers) {
  const std::string folder = test::DataPath("data/architectures/mixtral_moe");
  const auto model = LoadModel(folder, "cpu", true);
  const SafetensorsFile golden(folder + "/golden.safetensors");
  const auto ids = golden.tensors().at("input_ids").Copy<int32_t>();
  const auto expected = golden.tensors().at("logits").Copy<float>();
  for (size_t row = 0; row < 2; ++row) {
    const std::vector<float> ours = Logits(*model, std::span(ids).subspan(row * 40, 40), 40);
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_NEAR(ours[i], expected[row * 40 * 512 + i], 3e-5);  // as for the other families
    }
  }
  const auto greedy = golden.tensors().at("greedy").Copy<int32_t>();
  Session session(*model);
  const Generation g = Generate(session, std::span(greedy).first(12), {.max_tokens = 16});
  EXPECT_EQ(g.ids, std::vector<int32_t>(greedy.begin() + 12, greedy.end()));
}

}  // namespace
}  // namespace nibble
