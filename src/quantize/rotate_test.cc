// SPDX-License-Identifier: Apache-2.0
// Folding and rotation must leave every logit as it was, whatever the head counts and widths.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/model.h"
#include "io/safetensors.h"
#include "quantize/invariance.h"
#include "quantize/quantize.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Shape {
  int64_t hidden, heads, kv_heads, head_dim, ffn;
  bool bias;
  int64_t experts = 0;
};

// A random Llama of this shape, or a Mixtral, in a temporary folder.
std::string RandomModel(const Shape& s) {
  const fs::path dir =
      fs::path(testing::TempDir()) / fmt::format("rotate-{}-{}-{}-{}-{}-{}", s.hidden, s.heads,
                                                 s.kv_heads, s.head_dim, s.ffn, s.experts);
  fs::create_directories(dir);
  Json config = {{"model_type", "llama"},
                 {"hidden_size", s.hidden},
                 {"intermediate_size", s.ffn},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", s.heads},
                 {"num_key_value_heads", s.kv_heads},
                 {"head_dim", s.head_dim},
                 {"vocab_size", 64},
                 {"max_position_embeddings", 128},
                 {"rms_norm_eps", 1e-5},
                 {"tie_word_embeddings", true},
                 {"attention_bias", s.bias},
                 {"mlp_bias", s.bias}};
  if (s.experts > 0) {
    config["model_type"] = "mixtral";
    config["num_local_experts"] = s.experts;
    config["num_experts_per_tok"] = 2;
  }
  std::ofstream(dir / "config.json") << config.dump();
  const ModelConfig c = ParseConfig(config, "test");
  std::vector<SafetensorsWriter::Entry> entries;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    entries.push_back({name, DType::kF32, std::move(shape)});
  };
  add("model.embed_tokens.weight", {64, s.hidden});
  add("model.norm.weight", {s.hidden});
  const Family& family = FamilyOf(config, "test");
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (Norm norm : c.norms) add(family.norm(layer, norm), {c.width(norm)});
    for (Role role : c.layer_roles()) {
      add(family.linear(layer, role) + ".weight", {c.outputs(role), c.inputs(role)});
      if (s.bias) add(family.linear(layer, role) + ".bias", {c.outputs(role)});
    }
  }
  Rng rng(11);
  SafetensorsWriter writer((dir / "model.safetensors").string(), entries);
  for (const auto& entry : entries) {
    size_t count = 1;
    for (int64_t extent : entry.shape) count *= static_cast<size_t>(extent);
    std::vector<float> values(count);
    const double size =
        entry.shape.size() == 1 ? 1 : 1.5 / std::sqrt(static_cast<double>(entry.shape[1]));
    for (float& v : values) v = static_cast<float>(rng.Normal() * size);
    writer.Append(std::as_bytes(std::span(values)));
  }
  writer.Finish();
  return dir.string();
}

class Invariance : public testing::TestWithParam<std::tuple<Shape, Rotation>> {};

TEST_P(Invariance, FoldingAndRotationKeepTheLogits) {
  const auto& [shape, rotation] = GetParam();
  const Network source = OpenNetwork(RandomModel(shape));
  Recipe recipe = kQuarotRecipe;
  recipe.rotation = rotation;
  const Plan plan = MakePlan(source.config, recipe);
  // Not the CPU kernels: on AMX they take 16 of the 24 bits of fp32 weights.
  const auto backend = MakeBackend("cpu", true);
  Rotator rotator(source, recipe, plan, 3);
  Rng rng(5);
  rotator.Follow(RandomOrthogonal(shape.hidden, rng));
  const FloatLayers layers = [&](int64_t i) { return rotator.Layer(i); };
  // fp32 forward passes in another basis: a few hundred roundings of eps = 6e-8 each.
  EXPECT_LT(CheckInvariance(source, rotator, layers, plan, *backend), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Invariance,
    testing::Combine(testing::Values(Shape{64, 4, 4, 16, 172, false},     // 172 is a stored order
                                     Shape{64, 4, 2, 16, 224, true},      // grouped queries, biases
                                     Shape{96, 6, 2, 16, 344, false},     // conference of 6 heads
                                     Shape{80, 2, 1, 40, 88, true},       // odd factors everywhere
                                     Shape{72, 9, 3, 8, 214, false},      // Jacobsthal of 9 and 107
                                     Shape{56, 14, 2, 8, 56, false},      // conference of 14 heads
                                     Shape{120, 15, 5, 8, 90, false},     // Hartley of 15 and 45
                                     Shape{64, 4, 2, 16, 96, false, 5}),  // experts
                     testing::Values(Rotation::kHadamard, Rotation::kRandom)));

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
    QuantizeOptions options = {.model = RandomModel(shape),
                               .output = testing::TempDir() + "/tied",
                               .recipe = kQuarotRecipe,
                               .force = true};
    options.recipe.rounding = Rounding::kNearest;
    options.recipe.weights = {.bits = 32};
    options.recipe.activations = {};
    options.recipe.k = options.recipe.v = {.bits = 32};
    const std::vector<float> expected = logits(options.model);
    for (const Rotation rotation : {Rotation::kHadamard, Rotation::kNone, Rotation::kRandom}) {
      options.recipe.rotation = rotation;
      Quantize(options);
      EXPECT_EQ(OpenNetwork(options.output).one_table(), rotation != Rotation::kRandom);
      const std::vector<float> found = logits(options.output);
      // As above, of logits of size 1.5.
      for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-3) << i;
    }
  }
}

TEST(Plan, HeadsAndWidthsAreMixedInFull) {
  ModelConfig c =
      ParseConfig(ReadJsonFile(RandomModel({96, 6, 2, 16, 344, false}) + "/config.json"), "test");
  const Plan plan = MakePlan(c, kQuarotRecipe);
  EXPECT_EQ(plan.at(0, Role::kO).input_transform,
            (TransformSpec{.factors = {{6, FactorKind::kConference}}, .inner = 16}));
  EXPECT_EQ(plan.at(1, Role::kDown).input_transform.order(), 344);
  Recipe none = kQuarotRecipe;
  none.rotation = Rotation::kNone;
  const Plan plain = MakePlan(c, none);
  EXPECT_TRUE(plain.at(1, Role::kDown).input_transform.identity());
  EXPECT_TRUE(plain.kv_rotation.identity());
  EXPECT_FALSE(plain.norms_folded);
}

}  // namespace
}  // namespace nibble
