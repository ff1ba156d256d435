// SPDX-License-Identifier: Apache-2.0
// Folding and rotation must leave every logit as it was, whatever the head counts and widths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "compute/exact_backend.h"
#include "engine/model.h"
#include "models/families/family.h"
#include "models/import/open_network.h"
#include "models/random_model_testing.h"
#include "quantize/map/invariance.h"
#include "quantize/plan/make_plan.h"
#include "quantize/run/quantize.h"

namespace nibble {
namespace {

struct Shape {
  int64_t hidden, heads, kv_heads, head_dim, ffn;
  bool bias;
  int64_t experts = 0;
  Json changes = Json::object();  // of config.json
};

// A random Llama of this shape, or a Mixtral, in a temporary folder.
std::string ModelOf(const Shape& s) {
  Json config = SmallConfig({{"hidden_size", s.hidden},
                             {"intermediate_size", s.ffn},
                             {"num_attention_heads", s.heads},
                             {"num_key_value_heads", s.kv_heads},
                             {"head_dim", s.head_dim},
                             {"attention_bias", s.bias},
                             {"mlp_bias", s.bias}});
  if (s.experts > 0) {
    config["model_type"] = "mixtral";
    config["num_local_experts"] = s.experts;
    config["num_experts_per_tok"] = 2;
  }
  config.update(s.changes);
  return RandomModel(fmt::format("rotate-{}", std::hash<std::string>()(config.dump())), config);
}

class Invariance : public testing::TestWithParam<std::tuple<Shape, Rotation>> {};

TEST_P(Invariance, FoldingAndRotationKeepTheLogits) {
  const auto& [shape, rotation] = GetParam();
  const Network source = OpenNetwork(ModelOf(shape));
  Recipe recipe = kQuarotRecipe;
  recipe.rotation = rotation;
  recipe.output_transforms = rotation != Rotation::kRandom;
  const Plan plan = MakePlan(source.config, recipe);
  const auto backend = MakeExactBackend();
  Rotator rotator(source, recipe, plan, 3);
  Rng rng(5);
  rotator.Follow(RandomOrthogonal(shape.hidden, rng));
  const FloatLayers layers = [&](int64_t i) { return rotator.Layer(i); };
  // fp32 forward passes in another basis: a few hundred roundings of eps = 6e-8 each.
  EXPECT_LT(CheckInvariance(source, rotator, layers, plan, *backend).change, 1e-4);
}

// A linear with one output of the wrong sign is found, whichever it is.
TEST(InvarianceTest, AWrongMapIsRefused) {
  const Network source = OpenNetwork(ModelOf({64, 4, 2, 16, 96, false}));
  Recipe recipe = kQuarotRecipe;
  recipe.output_transforms = true;
  const Plan plan = MakePlan(source.config, recipe);
  const auto backend = MakeExactBackend();
  const Rotator rotator(source, recipe, plan, 3);
  for (const Role wrong : source.config.layer_roles(1)) {
    const FloatLayers layers = [&](int64_t i) {
      FloatLayer layer = rotator.Layer(i);
      if (i == 1) {
        for (double& weight : layer[wrong].row(5)) weight = -weight;
      }
      return layer;
    };
    EXPECT_THROW(CheckInvariance(source, rotator, layers, plan, *backend), Error)
        << RoleName(wrong);
  }
}

// There is room for one of two layers with two weights each.
TEST(KeepLayersTest, WhatFitsIsMadeOnceAndGoesWithTheLastPass) {
  std::vector<double> made(2);
  const FloatLayers make = [&](int64_t i) {
    FloatLayer layer;
    layer[Role::kQ] = Matrix<double>(2, 1);
    layer[Role::kQ].data = {static_cast<double>(i), ++made[static_cast<size_t>(i)]};
    return layer;
  };
  const FloatLayers layers = KeepLayers(make, 3, 3 * sizeof(double));
  for (const double pass : {1, 2, 3}) {
    EXPECT_THAT(layers(0)[Role::kQ].data, testing::ElementsAre(0, 1));
    EXPECT_THAT(layers(1)[Role::kQ].data, testing::ElementsAre(1, pass));
  }
  EXPECT_THAT(layers(0)[Role::kQ].data, testing::ElementsAre(0, 2)) << "nothing stays";
  const FloatLayers once = KeepLayers(make, 1, 1e9);
  once(1), once(1);
  EXPECT_EQ(made[1], 5) << "kept for no one";
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Invariance,
    testing::Combine(testing::Values(
                         Shape{64, 4, 4, 16, 172, false},    // 172 is a stored order
                         Shape{64, 4, 2, 16, 224, true},     // grouped queries, biases
                         Shape{96, 6, 2, 16, 344, false},    // conference of 6 heads
                         Shape{80, 2, 1, 40, 88, true},      // odd factors everywhere
                         Shape{72, 9, 3, 8, 214, false},     // Jacobsthal of 9 and 107
                         Shape{56, 14, 2, 8, 56, false},     // conference of 14 heads
                         Shape{120, 15, 5, 8, 90, false},    // Hartley of 15 and 45
                         Shape{64, 4, 2, 16, 96, false, 5},  // experts
                         Shape{64,
                               4,
                               2,
                               16,
                               96,
                               false,
                               0,  // norms of heads
                               {{"model_type", "qwen3"}}},
                         Shape{64,
                               4,
                               2,
                               16,
                               96,
                               false,
                               0,  // some heads not turned
                               {{"model_type", "smollm3"}, {"no_rope_layers", {0, 1}}}},
                         Shape{64,
                               4,
                               2,
                               16,
                               96,
                               false,
                               0,  // turned in part
                               {{"model_type", "phi3"}, {"partial_rotary_factor", 0.75}}},
                         Shape{64,
                               4,
                               2,
                               16,
                               96,
                               false,
                               0,
                               {{"model_type", "granite"},
                                {"residual_multiplier", 0.3},
                                {"embedding_multiplier", 5.0},
                                {"logits_scaling", 3.0}}}),
                     testing::Values(Rotation::kHadamard, Rotation::kRandom, Rotation::kFourier,
                                     Rotation::kKronecker)));

// Products of the final norm's outputs of each token with those of each other one.
std::vector<double> ProductsOfStates(const std::string& directory,
                                     const std::vector<int32_t>& ids) {
  const auto model = LoadModel(directory, "cpu", true);
  const auto hidden = static_cast<size_t>(model->config().hidden_size);
  KvCache cache = model->MakeCache();
  const Model::Sequence sequence = {ids, &cache};
  std::vector<int32_t> rows(ids.size());
  std::iota(rows.begin(), rows.end(), 0);
  const float* states =
      model->States(model->Forward({&sequence, 1}), static_cast<int64_t>(ids.size()), rows);
  std::vector<double> products;
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t j = 0; j <= i; ++j) {
      products.push_back(std::inner_product(states + i * hidden, states + (i + 1) * hidden,
                                            states + j * hidden, 0.0));
    }
  }
  return products;
}

// Nothing is rounded: what is left is fp32 in another basis. 96 = 12 * 8 and 80 = 20 * 4, whose
// matrices are not their own inverses; 64 and an odd width.
TEST(TiedHead, OneTableServesHeadAndEmbedding) {
  const std::vector<int32_t> ids = {3, 60, 0, 17, 17, 42};
  for (const Shape& shape : {Shape{96, 6, 2, 16, 344, false}, Shape{80, 2, 1, 40, 88, true},
                             Shape{64, 4, 2, 16, 96, true}, Shape{33, 2, 1, 8, 40, false}}) {
    const auto logits = [&](const std::string& directory) {
      const auto model = LoadModel(directory, "cpu", true);
      KvCache cache = model->MakeCache();
      const Model::Sequence sequence = {ids, &cache};
      const float* x = model->Forward({&sequence, 1});
      const float* values = model->Logits(x, static_cast<int64_t>(ids.size()));
      return std::vector<float>(values, values + ids.size() * 64);
    };
    QuantizeOptions options = {.model = ModelOf(shape),
                               .output = testing::TempDir() + "/tied",
                               .recipe = kQuarotRecipe,
                               .force = true};
    options.recipe.rounding = Rounding::kNearest;
    options.recipe.weights = {.bits = 32};
    options.recipe.activations = {};
    options.recipe.k = options.recipe.v = {.bits = 32};
    const std::vector<float> expected = logits(options.model);
    const std::vector<double> products = ProductsOfStates(options.model, ids);
    for (const Rotation rotation : {Rotation::kHadamard, Rotation::kNone, Rotation::kRandom,
                                    Rotation::kFourier, Rotation::kKronecker}) {
      if (rotation == Rotation::kFourier && shape.hidden % 2 != 0) continue;
      options.recipe.rotation = rotation;
      Quantize(options);
      const bool tied = rotation == Rotation::kHadamard || rotation == Rotation::kNone ||
                        shape.hidden == 33;  // the matrix that turns is smaller than 64 rows
      EXPECT_EQ(OpenNetwork(options.output).one_table(), tied);
      const std::vector<float> found = logits(options.output);
      // The logits are of size 1.5.
      for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-3) << i;
      if (!tied) continue;  // the weights of the final norm went into the head
      const std::vector<double> turned = ProductsOfStates(options.output, ids);
      // products[0] sums the squares of hidden_size outputs of the norm, its weights included; it
      // is the largest order of all.
      for (size_t i = 0; i < turned.size(); ++i) {
        ASSERT_NEAR(turned[i], products[i], 1e-3 * products[0]) << i;
      }
    }
  }
}

TEST(Plan, HeadsAndWidthsAreMixedInFull) {
  ModelConfig c =
      ParseConfig(ReadJsonFile(ModelOf({96, 6, 2, 16, 344, false}) + "/config.json"), "test");
  const Plan plan = MakePlan(c, kQuarotRecipe);
  EXPECT_EQ(plan.at(0, Role::kO).input_transform,
            (TransformSpec{.factors = {{6, FactorKind::kConference}}, .inner = 16}));
  EXPECT_EQ(plan.at(1, Role::kDown).input_transform.order(), 344);
  Recipe fourier = kQuarotRecipe;
  fourier.rotation = Rotation::kFourier;
  EXPECT_EQ(MakePlan(c, fourier).at(0, Role::kO).input_transform,
            (TransformSpec{.factors = {{96, FactorKind::kFourier}}}));
  c.intermediate_size = 345;
  EXPECT_THAT([&] { MakePlan(c, fourier); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("345 is no even number")));
  c.intermediate_size = 344;
  Recipe none = kQuarotRecipe;
  none.rotation = Rotation::kNone;
  const Plan plain = MakePlan(c, none);
  EXPECT_TRUE(plain.at(1, Role::kDown).input_transform.identity());
  EXPECT_TRUE(plain.kv_rotation.identity());
  EXPECT_FALSE(plain.norms_folded);
}

// Outputs are transformed where nothing else mixes them: those of o and down only behind a stream
// that stays as it is, and there only in front of a norm.
TEST(Plan, OutputsThatNothingMixesAreTransformed) {
  const auto transformed = [](const Json& changes, Rotation rotation) {
    const Network source = OpenNetwork(ModelOf({64, 4, 2, 16, 96, false, 0, changes}));
    Recipe recipe = kQuipsharpRecipe;
    recipe.rotation = rotation, recipe.output_transforms = true;
    const Plan plan = MakePlan(source.config, recipe);
    std::string roles;
    for (const Role role : source.config.layer_roles(1)) {
      const TransformSpec& transform = plan.at(1, role).output_transform;
      if (transform.identity()) continue;
      EXPECT_EQ(transform.width(), source.config.outputs(1, role));
      roles += RoleName(role) + " ";
    }
    return roles;
  };
  const Json gemma = {{"model_type", "gemma3_text"}, {"query_pre_attn_scalar", 16}};
  EXPECT_EQ(transformed(Json::object(), Rotation::kHadamard), "q k gate up ");
  EXPECT_EQ(transformed(Json::object(), Rotation::kInputs), "q k gate up ");
  EXPECT_EQ(transformed(Json::object(), Rotation::kNone), "");
  EXPECT_EQ(transformed(gemma, Rotation::kHadamard), "q k o gate up down ");
}

}  // namespace
}  // namespace nibble
