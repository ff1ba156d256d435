// SPDX-License-Identifier: Apache-2.0
// Plans from recipes and their rules.
#include "quantize/recipes/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_testing.h"
#include "models/families/family.h"
#include "models/families/shapes.h"
#include "models/random_model_testing.h"
#include "quantize/learn/learn_scales.h"
#include "quantize/plan/make_plan.h"
#include "quantize/recipes/effort.h"
#include "quantize/recipes/recipe_fields.h"

namespace nibble {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// "" if a plan can be made; usage errors alone are expected.
std::string Refusal(const ModelConfig& config, const Recipe& recipe) {
  try {
    MakePlan(config, recipe);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

Rule WeightBits(const std::string& pattern, int bits) {
  return {pattern, fmt::format("w-bits={}", bits)};
}

Rule ActivationBits(const std::string& pattern, int bits) {
  return {pattern, fmt::format("a-bits={}", bits)};
}

class Rules : public testing::Test {
 protected:
  static ModelConfig Config() {
    ModelConfig config = FindShape("llama2-7b");
    config.layers = 4;
    return config;
  }
  const ModelConfig config_ = Config();
  Recipe recipe_ = kQuarotRecipe;
};

TEST_F(Rules, LaterOnesWinAndTheOthersStay) {
  recipe_.rules = {WeightBits("self_attn", 8),
                   WeightBits(R"(^model\.layers\.[13]\..*(?:k|o)_proj$)", 3),
                   WeightBits(R"(^layers\.3\.o)", 16)};
  const Plan plan = MakePlan(config_, recipe_), plain = MakePlan(config_, kQuarotRecipe);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    for (Role role : kLayerRoles) {
      const bool attention = role <= Role::kO, third = role == Role::kK || role == Role::kO;
      LinearPlan expected = plain.at(layer, role);
      if (attention) expected.weights.bits = 8;
      if ((layer == 1 || layer == 3) && third) expected.weights.bits = 3;
      if (layer == 3 && role == Role::kO) expected.weights.bits = 16;
      const LinearPlan& planned = plan.at(layer, role);
      EXPECT_EQ(planned.weights, expected.weights) << LinearName(layer, role);
      EXPECT_EQ(planned.activations, expected.activations);
      EXPECT_EQ(planned.input_transform, expected.input_transform);
    }
  }
}

TEST_F(Rules, TransformsHaveThePrecisionAskedFor) {
  const auto plan = [&](const char* fields, const std::vector<std::string>& rules = {}) {
    return MakePlan(config_, ChangedRecipe(kQuarotRecipe, ParseFields(fields), rules));
  };
  const Plan plain = plan(""), halves = plan("hadamard-bits=16");
  EXPECT_EQ(ToJson(plan("hadamard-bits=auto")), ToJson(plain));
  for (const auto& [name, linear] : halves.linears) {
    EXPECT_EQ(linear.transform_bits, linear.input_transform.identity() ? 0 : 16) << name;
    EXPECT_EQ(linear.input_transform, plain.linears.at(name).input_transform) << name;
  }
  const Plan mixed = plan("hadamard-bits=16", {"layers.1.*down:hadamard-bits=32"});
  EXPECT_EQ(mixed.at(1, Role::kDown).transform_bits, 32);
  EXPECT_EQ(mixed.at(0, Role::kDown).transform_bits, 16);
  EXPECT_EQ(mixed.at(1, Role::kO).transform_bits, 16);
  EXPECT_THAT(ErrorOf([&] { plan("hadamard-bits=8"); }),
              AllOf(HasSubstr("hadamard-bits"), HasSubstr("auto, 16, 32")));
}

TEST_F(Rules, TablesHaveFormatsOfTheirOwn) {
  const auto weights = [&](Role role) { return MakePlan(config_, recipe_).at(0, role).weights; };
  EXPECT_EQ(weights(Role::kHead), FormatSpec{.bits = 8});
  EXPECT_EQ(weights(Role::kEmbedding), FormatSpec{.bits = 8});
  EXPECT_EQ(MakePlan(config_, recipe_).at(0, Role::kHead).activations, FormatSpec{.bits = 8});
  EXPECT_EQ(MakePlan(config_, kGptqRecipe).at(0, Role::kHead).activations, FormatSpec{});
  recipe_.head = {.bits = 4};
  recipe_.embedding = {.bits = 32};
  recipe_.rules = {WeightBits("embed_tokens", 16), WeightBits("^layers", 3)};
  EXPECT_EQ(weights(Role::kHead).bits, 4);
  EXPECT_EQ(weights(Role::kEmbedding).bits, 16);
  recipe_.rules = {WeightBits("lm_head", 6)};
  EXPECT_EQ(weights(Role::kHead).bits, 6);
  recipe_ = kQuarotRecipe;
  recipe_.weights = {};
  EXPECT_EQ(weights(Role::kHead), FormatSpec{});
}

TEST_F(Rules, OneTableWhereTheSourceHasOneAndItsRotationIsSmall) {
  const auto tied = [&] { return MakePlan(config_, recipe_).tied_head; };
  EXPECT_FALSE(tied());
  ModelConfig config = config_;
  config.tied_head = true;
  const auto why = [&] {
    const Plan plan = MakePlan(config, recipe_);
    EXPECT_EQ(plan.tied_head, WhyTwoTables(config, recipe_, plan).empty());
    const TransformSpec& turn = plan.at(0, Role::kHead).input_transform;
    EXPECT_EQ(turn.identity() && !plan.head_rotation, !(plan.tied_head && plan.norms_folded));
    Recipe fine = recipe_;
    fine.transform_bits = 32;
    EXPECT_EQ(MakePlan(config, fine).at(0, Role::kHead).transform_bits, turn.identity() ? 0 : 32);
    return std::string(WhyTwoTables(config, recipe_, plan));
  };
  EXPECT_EQ(why(), "");
  recipe_.head = {.bits = 4};
  EXPECT_THAT(why(), HasSubstr("formats differ"));
  recipe_.embedding = recipe_.head;
  EXPECT_EQ(why(), "");
  recipe_.rotation = Rotation::kNone;
  EXPECT_EQ(why(), "");
  recipe_ = kNibbleRecipe;  // 8-bit tables
  recipe_.rotation = Rotation::kHadamard;
  config.vocab_size = 4 * config.hidden_size;
  EXPECT_THAT(why(), HasSubstr("larger"));
  config.vocab_size += 1;
  EXPECT_EQ(why(), "");
  recipe_.rotation = Rotation::kRandom;
  EXPECT_EQ(why(), "");
}

TEST_F(Rules, OneThatFindsNothingIsRefused) {
  recipe_.rules = {WeightBits("layers.0", 8), WeightBits("fc2$", 8)};
  EXPECT_THAT(Refusal(config_, recipe_), AllOf(HasSubstr("fc2$:w-bits"), HasSubstr("down_proj")));
  recipe_.rules = {WeightBits("lm_heads", 8)};
  EXPECT_THAT(Refusal(config_, recipe_), HasSubstr("lm_heads"));
  recipe_.rules = {WeightBits("(q", 8)};
  EXPECT_THAT(Refusal(config_, recipe_), HasSubstr("regular expression"));
}

// q_proj ends otherwise: every way to cut the name into pieces would be tried.
TEST_F(Rules, PatternsThatBacktrackEndlesslyAreStopped) {
  recipe_.rules = {WeightBits("^(([a-z._0-9])+)+[0-9]$", 8)};
  EXPECT_THAT(Refusal(config_, recipe_), HasSubstr("match"));
}

TEST_F(Rules, ReadersOfOneInputMustAgreeOnIt) {
  recipe_.rules = {ActivationBits("layers.1.*[kv]_proj", 8)};
  EXPECT_THAT(Refusal(config_, recipe_), AllOf(HasSubstr("layers.1.q"), HasSubstr("layers.1.k")));
  recipe_.rules = {ActivationBits("layers.1.*[qkv]_proj", 8)};
  EXPECT_EQ(Refusal(config_, recipe_), "");
  recipe_ = kQuikRecipe;
  recipe_.rules.push_back({"up_proj", "tail=512"});
  EXPECT_THAT(Refusal(config_, recipe_), AllOf(HasSubstr("gate"), HasSubstr("up")));
}

TEST_F(Rules, QuiksDownIsOne) {
  Recipe quik = kQuikRecipe;
  quik.activations.bits = 5;
  quik.rules.push_back(WeightBits("layers.2.*down", 6));
  const Plan plan = MakePlan(config_, quik);
  EXPECT_EQ(plan.at(1, Role::kUp).activations.bits, 5);
  EXPECT_EQ(plan.at(1, Role::kDown).activations.bits, 8);
  EXPECT_EQ(plan.at(1, Role::kDown).weights.bits, 8);
  EXPECT_EQ(plan.at(2, Role::kDown).activations.bits, 8);
  EXPECT_EQ(plan.at(2, Role::kDown).weights.bits, 6);
  // Shapes of families that only benchmarks know have Nibble's names alone.
  EXPECT_EQ(MakePlan(FindShape("qwen2.5-7b"), quik).at(0, Role::kDown).weights.bits, 8);
}

TEST_F(Rules, FindExpertsAndLeaveRoutersAlone) {
  ModelConfig config = FindShape("mixtral-8x7b");
  config.layers = 2;
  recipe_ = kAtomRecipe;
  recipe_.rules = {WeightBits(R"(experts\.7\.w2)", 8), WeightBits(R"(^layers\.1\.)", 3)};
  const Plan plan = MakePlan(config, recipe_);
  EXPECT_EQ(plan.linears.size(), 2u * (5 + 3 * 8) + 2);
  for (int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(plan.at(layer, Role::kRouter), kRouterPlan);
    for (int64_t e = 0; e < 8; ++e) {
      const LinearPlan& up = plan.at(layer, OfExpert(Role::kUp, e));
      const LinearPlan& down = plan.at(layer, OfExpert(Role::kDown, e));
      EXPECT_EQ(up.weights.bits, layer == 1 ? 3 : 4);
      EXPECT_EQ(down.weights.bits, layer == 1 ? 3 : e == 7 ? 8 : 4);
      EXPECT_EQ(up.tail.columns, 128);
      EXPECT_TRUE(up.gather);
      EXPECT_FALSE(down.gather) << "up and gate make it in any order";
    }
  }
  for (const char* pattern : {"router", R"(block_sparse_moe\.gate$)"}) {
    recipe_.rules = {WeightBits(pattern, 8)};
    EXPECT_THAT(Refusal(config, recipe_), HasSubstr("no linear has such a name"));
  }
  Json json = ToJson(plan);
  json["linears"]["layers.1.router"] = json["linears"]["layers.1.q"];
  try {
    PlanFromJson(json, config, "plan");
    FAIL() << "a rounded router was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("layers.1.router stays at 32 bits"));
  }
}

// Clips to be searched are 0 in the plan; a rule may fix some of them, but not search any.
TEST_F(Rules, ClipsAreSearchedOrGiven) {
  const auto clip = [](const std::string& pattern, double value) {
    return Rule{pattern, fmt::format("a-clip={}", value)};
  };
  recipe_.rules = {clip("o_proj", 0)};
  EXPECT_THAT(Refusal(config_, recipe_), AllOf(HasSubstr("layers.0.o"), HasSubstr("--a-clip 0")));
  recipe_.activations.clip = 0;
  recipe_.rules = {clip("o_proj", 0.75)};
  const Plan plan = MakePlan(config_, recipe_);
  EXPECT_EQ(plan.at(1, Role::kO).activations.clip, 0.75);
  EXPECT_EQ(plan.at(1, Role::kQ).activations.clip, 0);
}

// OLMo 2's and EXAONE 4's norms stand behind attention and FFN alone.
TEST(ModelsWithoutNormsInFront, HaveNoneToScaleAndLearnNoScales) {
  constexpr int64_t kIds = 1 << 22;
  EXPECT_EQ(Refusal(FindShape("llama2-7b"), kSmoothquantRecipe), "");
  EXPECT_TRUE(LearnsScales(kNibbleRecipe, FindShape("llama2-7b"), kIds));
  for (const char* type : {"olmo2", "exaone4"}) {
    Json json = ShapeConfig("llama2-7b");
    json["model_type"] = type;
    const ModelConfig config = ParseConfig(json, type);
    EXPECT_THAT(Refusal(config, kSmoothquantRecipe), HasSubstr("--alpha")) << type;
    EXPECT_FALSE(LearnsScales(kNibbleRecipe, config, kIds)) << type;
  }
}

TEST(SearchedScales, SeeNeitherRotationsNorOrdersNorOtherScales) {
  const ModelConfig config = FindShape("llama2-7b");
  EXPECT_EQ(Refusal(config, kAwqRecipe), "");
  for (const auto& [fields, reason] :
       std::vector<std::pair<const char*, const char*>>{{"rotation=hadamard", "--rotation none"},
                                                        {"order=largest", "--order none"},
                                                        {"alpha=0.5", "--alpha"},
                                                        {"output-alpha=0.5", "--output-alpha"}}) {
    EXPECT_THAT(Refusal(config, ChangedRecipe(kAwqRecipe, ParseFields(fields), {})),
                AllOf(HasSubstr("--scale-steps"), HasSubstr(reason)))
        << fields;
  }
}

TEST(LayersThatLearn, NeedGradientsAndAsymmetricIntegers) {
  EXPECT_EQ(Refusal(FindShape("llama2-7b"), kOmniquantRecipe), "");
  EXPECT_THAT(Refusal(FindShape("mixtral-8x7b"), kOmniquantRecipe), HasSubstr("--block-epochs"));
  for (const auto& [fields, reason] :
       std::vector<std::pair<const char*, const char*>>{{"w-sym", "--w-asym"},
                                                        {"w-clip=0", "--w-clip 1"},
                                                        {"sparse=2:4", "asymmetric integers"},
                                                        {"rounding=gptq", "--rounding rtn"},
                                                        {"rotation=inputs", "--rotation none"},
                                                        {"output-clips", "--no-output-clips"}}) {
    EXPECT_THAT(
        Refusal(FindShape("llama2-7b"), ChangedRecipe(kOmniquantRecipe, ParseFields(fields), {})),
        AllOf(HasSubstr("--block-epochs"), HasSubstr(reason)))
        << fields;
  }
}

TEST(LayersThatAreTuned, NeedGradientsAndTheirOwnInputs) {
  const auto refusal = [](const char* shape, const char* fields) {
    return Refusal(FindShape(shape), ChangedRecipe(kQuipsharpRecipe, ParseFields(fields), {}));
  };
  EXPECT_EQ(refusal("llama2-7b", "tune-blocks=2"), "");
  for (const auto& [shape, fields, reason] :
       std::vector<std::tuple<const char*, const char*, const char*>>{
           {"mixtral-8x7b", "tune-blocks=2", "gated FFN"},
           {"llama2-7b", "tune-blocks=2,order=energy", "--order none"},
           {"llama2-7b", "tune-blocks=2,gptaq=0.5", "--gptaq 0"}}) {
    EXPECT_THAT(refusal(shape, fields), AllOf(HasSubstr("--tune-blocks"), HasSubstr(reason)))
        << fields;
  }
}

TEST(ModelsWithNormsOfValues, HaveNoOutputsToScale) {
  Recipe recipe = kRtnRecipe;
  recipe.output_smoothing = 0.5;
  EXPECT_EQ(Refusal(FindShape("gemma3-12b"), recipe), "");
  EXPECT_THAT(Refusal(FindShape("gemma4-31b"), recipe), HasSubstr("--output-alpha"));
}

TEST(ModelsWithSinks, KeepTheirKeysAsTheyAre) {
  Recipe centered = ChangedRecipe(kQuarotRecipe, ParseFields("center-keys"), {});
  EXPECT_THAT(Refusal(FindShape("gpt-oss-20b"), centered), HasSubstr("use --raw-keys"));
  // A recipe that nobody asks to center keys does so only where the model can have it.
  EXPECT_FALSE(MakePlan(FindShape("gpt-oss-20b"), kNibbleRecipe).center_keys);
  EXPECT_TRUE(MakePlan(FindShape("llama2-7b"), kNibbleRecipe).center_keys);
  EXPECT_FALSE(MakePlan(FindShape("llama2-7b"), kW4a8Recipe).center_keys);
}

// Two tokens for each input of the widest linear; a routed expert sees its share of the text.
TEST(Efforts, ReadMoreTextForWideLinearsAndExperts) {
  const auto windows = [](Json changes, const Effort& effort) {
    return effort.WindowsFor(ParseConfig(SmallConfig(changes), "small"), 512);
  };
  EXPECT_EQ(windows(Json::object(), kBalanced), 16);
  EXPECT_EQ(windows({{"intermediate_size", 11008}}, kBalanced), 2 * 11008 / 512);
  EXPECT_EQ(windows({{"intermediate_size", 11008}}, kFast), (11008 + 511) / 512);
  Json experts = {{"model_type", "mixtral"},
                  {"num_local_experts", 8},
                  {"num_experts_per_tok", 2},
                  {"intermediate_size", 4096}};
  EXPECT_EQ(windows(experts, kBalanced), 2 * 4096 * 8 / 2 / 512);
  experts["intermediate_size"] = 1 << 16;
  EXPECT_EQ(windows(experts, kBalanced), 65536 / 512) << "no more than best reads";
}

}  // namespace
}  // namespace nibble
