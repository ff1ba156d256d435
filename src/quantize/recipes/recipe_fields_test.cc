// SPDX-License-Identifier: Apache-2.0
#include "quantize/recipes/recipe_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error_testing.h"
#include "models/families/shapes.h"
#include "quantize/plan/make_plan.h"

namespace nibble {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Kind = FieldDomain::Kind;

// Every value that help promises, as text, and some that it does not.
std::pair<std::vector<std::string>, std::vector<std::string>> Samples(const FieldDomain& d) {
  std::vector<std::string> good, bad = {"", "x", "nan", "-1", "1e9", "4 "};
  if (d.kind == Kind::kSwitch) return {{""}, {"1", "true"}};
  for (double value : {d.min, d.max}) good.push_back(fmt::format("{}", value));
  for (double value : d.others) good.push_back(fmt::format("{}", value));
  if (d.kind == Kind::kName) good = {d.names.begin(), d.names.end()};
  if (d.kind == Kind::kWhole) bad.push_back(fmt::format("{}", d.min + 0.5));
  return {good, bad};
}

TEST(RecipeFields, TakeTheValuesOfTheirDomainAlone) {
  std::set<std::string_view> names;
  for (const RecipeField& field : RecipeFields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    const std::string_view off = field.domain.off;
    EXPECT_TRUE(off.empty() || names.insert(off).second) << off;
    const auto [good, bad] = Samples(field.domain);
    for (const std::string& text : good) {
      const FieldValue value = ParseField(field.name, text);
      EXPECT_EQ(value.field, &field);
      const std::string option = fmt::format("--{}{}{}", field.name, text.empty() ? "" : " ", text);
      EXPECT_EQ(OptionText(value), option);
    }
    for (const std::string& text : bad) {
      EXPECT_THAT(ErrorOf([&] { ParseField(field.name, text); }), HasSubstr(field.name)) << text;
    }
  }
  EXPECT_THAT(ErrorOf([] { ParseField("w-bit", "4"); }), HasSubstr("w-bit"));
}

// The record of a recipe has the values that were set.
TEST(RecipeFields, AreReadAsTheyWereSet) {
  for (const RecipeField& field : RecipeFields()) {
    if (field.get == nullptr) continue;
    for (const std::string& text : Samples(field.domain).first) {
      const FieldValue value = ParseField(field.name, text);
      for (Recipe recipe : {kRtnRecipe, kNibbleRecipe}) {
        field.set(recipe, value.value);
        EXPECT_EQ(field.get(recipe), value.value) << field.name;
      }
    }
  }
}

TEST(RecipeFields, OfAListAreThoseAlone) {
  const auto values = ParseFields("w-bits=3,a-sym,sparse=2:4");
  ASSERT_EQ(values.size(), 3u);
  EXPECT_EQ(OptionText(values[0]), "--w-bits 3");
  EXPECT_EQ(OptionText(values[1]), "--a-sym");
  EXPECT_EQ(OptionText(values[2]), "--sparse 2:4");
  EXPECT_EQ(ValueJson(values[0]), 3);
  EXPECT_EQ(ValueJson(values[1]), false);
  EXPECT_EQ(ValueJson(values[2]), "2:4");
  EXPECT_TRUE(ParseFields("").empty());
  for (const char* list : {",", "w-bits", "w-bits=", "w-bits=4,", "=4", "w-asym=", "w-asym=1"}) {
    EXPECT_NE(ErrorOf([&] { ParseFields(list); }), "") << list;
  }
}

TEST(RecipeFields, OfRulesFollowTheLastColonBeforeALetter) {
  const Rule rule = ParseRule("(?:up|gate)_proj:sparse=2:4,w-bits=8");
  EXPECT_EQ(rule.pattern, "(?:up|gate)_proj");
  EXPECT_EQ(rule.fields, "sparse=2:4,w-bits=8");
  EXPECT_THAT(ErrorOf([] { ParseRule("down_proj"); }), HasSubstr("PATTERN:FIELD=VALUE"));
  EXPECT_THAT(ErrorOf([] { ParseRule("down:damp=0.1"); }), HasSubstr("damp is of the whole model"));
  EXPECT_THAT(ErrorOf([] { ParseRule("down:w-bits=9"); }),
              AllOf(HasSubstr("--rule down:w-bits=9"), HasSubstr("2 to 8, 16, 32")));
}

// The order in which a user gives them does not count.
TEST(RecipeFields, GroupsOfBothComeBeforeThoseOfEach) {
  for (const char* list : {"group=64,w-group=32", "w-group=32,group=64"}) {
    const Recipe recipe = ChangedRecipe(kQuarotRecipe, ParseFields(list));
    EXPECT_EQ(recipe.weights.group, 32) << list;
    EXPECT_EQ(recipe.activations.group, 64) << list;
  }
  const Recipe two = ChangedRecipe(kQserveRecipe, ParseFields("group=64"));
  EXPECT_TRUE(two.weights.second_level);
  EXPECT_EQ(two.activations.group, 0) << "not beside a second level";
  EXPECT_FALSE(ChangedRecipe(kQserveRecipe, ParseFields("w-bits=8")).weights.second_level);
  EXPECT_FALSE(ChangedRecipe(kNibbleRecipe, ParseFields("a-asym")).activations.signed_scale);
}

class IdleFields : public testing::Test {
 protected:
  // The error of making a plan; "" if there is none.
  std::string Refusal(const Recipe& recipe, const char* fields,
                      const std::vector<std::string>& rules = {}) const {
    return ErrorOf([&] { MakePlan(config_, ChangedRecipe(recipe, ParseFields(fields), rules)); });
  }
  const ModelConfig config_ = [] {
    ModelConfig config = FindShape("llama2-7b");
    config.layers = 2;
    return config;
  }();
};

TEST_F(IdleFields, AreErrors) {
  for (const auto& [recipe, fields, option, reason] :
       std::vector<std::tuple<Recipe, const char*, const char*, const char*>>{
           {kQuarotRecipe, "tail=256", "--tail 256", "--order"},
           {kQuarotRecipe, "tail-bits=8", "--tail-bits 8", "--tail"},
           {kRtnRecipe, "learned-rotation", "--learned-rotation", "--rotation"},
           {kQuarotRecipe, "learned-rotation,w-bits=16,a-bits=16", "--learned-rotation", "neither"},
           {kRtnRecipe, "learned-scales", "--learned-scales", "--rotation"},
           {kRtnRecipe, "online", "--online", "--rotation"},
           {kRtnRecipe, "hadamard-bits=16", "--hadamard-bits 16", "--rotation"},
           {kQuarotRecipe, "no-online,hadamard-bits=32", "--hadamard-bits 32", "--online"},
           {kQuarotRecipe, "rounding=rtn,damp=0.02", "--damp 0.02", "--rounding gptq"},
           {kQuarotRecipe, "rounding=rtn,sweeps=1", "--sweeps 1", "--rounding gptq"},
           {kQuarotRecipe, "rounding=rtn,calib-float", "--calib-float", "--rounding gptq"},
           {kQuarotRecipe, "w-bits=16,damp=0.02", "--damp 0.02", "no weights"},
           {kQuarotRecipe, "w-bits=16,w-group=64", "--w-group 64", "no weights"},
           {kGptqRecipe, "a-asym", "--a-asym", "not quantized"},
           {kGptqRecipe, "a-clip=0.9", "--a-clip 0.9", "not quantized"},
           {kGptqRecipe, "calib-quantized", "--calib-quantized", "neither"},
           {kRtnRecipe, "two-level", "--two-level", "--w-group"},
           {kQuarotRecipe, "w-clip=1,squared-clips", "--squared-clips", "--w-clip 0"},
           {kRtnRecipe, "order=largest", "--order largest", "neither"},
           {kQuipsharpRecipe, "foem=0.1", "--foem 0.1", "lattice"},
           {kQuipsharpRecipe, "output-clips", "--output-clips", "lattice"},
           {kQuipsharpRecipe, "w-bits=3,codebook=kmeans", "--w-bits 3", "bits of its own"},
           {kQuipsharpRecipe, "w-bits=2,codebook=e8", "--w-bits 2", "bits of its own"},
           {kQuipsharpRecipe, "codebook=half-integer,learned-scales", "--learned-scales", "scales"},
           {kQuipsharpRecipe, "codebook=kmeans,w-clip=0.9", "--w-clip 0.9", "no grid"},
           {kQuipsharpRecipe, "codebook=e8,foem=0.1", "--foem 0.1", "codewords"},
           {kStoredRecipe, "output-clips", "--output-clips", "stay"},
           {kRtnRecipe, "learned-channels", "--learned-channels", "--block-epochs"},
           {kRtnRecipe, "tune-blocks=2", "--tune-blocks 2", "--rounding gptq"},
           {kRtnRecipe, "w-bits=16,scale-steps=20", "--scale-steps 20", "no weights"},
           {kGptqRecipe, "kv-asym", "--kv-asym", "cache"}}) {
    EXPECT_THAT(Refusal(recipe, fields), AllOf(HasSubstr(option), HasSubstr(reason))) << fields;
  }
}

TEST_F(IdleFields, ARuleMayGiveThemWork) {
  EXPECT_EQ(Refusal(kGptqRecipe, "a-clip=0.9", {"down_proj:a-bits=8"}), "");
  EXPECT_EQ(Refusal(kQuarotRecipe, "w-bits=16,damp=0.02", {"down_proj:w-bits=4"}), "");
  EXPECT_THAT(Refusal(kQuarotRecipe, "", {"embed_tokens:a-bits=8"}),
              HasSubstr("an embedding multiplies nothing"));
  EXPECT_EQ(Refusal(kQuarotRecipe, "", {"lm_head|embed_tokens:a-bits=16"}), "");
  EXPECT_THAT(Refusal(kGptqRecipe, "", {"down_proj:a-clip=0.9"}),
              AllOf(HasSubstr("--rule down_proj:a-clip=0.9"), HasSubstr("not quantized")));
  EXPECT_EQ(Refusal(kGptqRecipe, "", {"down_proj:a-clip=0.9", "layers.1.*down:a-bits=8"}), "");
  // A table is rounded to nearest, whatever the layers are.
  EXPECT_NE(Refusal(kQuarotRecipe, "w-bits=16,head-bits=8,damp=0.02"), "");
}

// What a codebook of the comparison cannot be together with.
TEST_F(IdleFields, CodebooksTakeTheirOwnBitsAndOrder) {
  EXPECT_EQ(Refusal(kQuipsharpRecipe, "w-bits=2,codebook=kmeans"), "");
  EXPECT_EQ(Refusal(kQuipsharpRecipe, "w-bits=4,codebook=half-integer"), "");
  EXPECT_EQ(Refusal(kQuipsharpRecipe, "codebook=half-integer,act-order"), "");
  EXPECT_THAT(Refusal(kQuipsharpRecipe, "codebook=e8,act-order"), HasSubstr("--no-act-order"));
  EXPECT_THAT(Refusal(kQuipsharpRecipe, "codebook=kmeans,w-asym"), HasSubstr("symmetric"));
  EXPECT_THAT(Refusal(kQuipsharpRecipe, "codebook=e8,w-group=64"), HasSubstr("a row"));
  EXPECT_EQ(Refusal(kQuipsharpRecipe, "codebook=e8,w-sym,w-group=0"), "");
  EXPECT_THAT(Refusal(kQuikRecipe, "codebook=e8"), HasSubstr("--tail 0"));
  const Plan plan = MakePlan(config_, ChangedRecipe(kQuipsharpRecipe, ParseFields("codebook=e8")));
  EXPECT_EQ(FormatText(plan.at(0, Role::kQ).weights), "1 e8 in 16");
}

TEST_F(IdleFields, WhatIsOffAnywayMayBeTurnedOff) {
  EXPECT_EQ(Refusal(kRtnRecipe, "fixed-rotation,no-online,tail=0,fixed-scales"), "");
}

TEST_F(IdleFields, AreNotRecorded) {
  const auto record = [&](const Recipe& recipe, const char* fields) {
    return MakePlan(config_, ChangedRecipe(recipe, ParseFields(fields))).provenance;
  };
  const Json gptq = record(kQuarotRecipe, "damp=0.02");
  EXPECT_EQ(gptq["damp"], 0.02);
  EXPECT_EQ(gptq["rotation"], "hadamard");
  EXPECT_EQ(gptq["rounding"], "gptq");
  EXPECT_EQ(gptq["calib-quantized"], true);
  const Json nearest = record(kQuarotRecipe, "rounding=rtn");
  for (const char* field : {"damp", "calib-quantized", "scale-steps", "output-clips"}) {
    EXPECT_FALSE(nearest.contains(field)) << field;
  }
  const Json awq = record(kAwqRecipe, "scale-steps=10");
  EXPECT_EQ(awq["scale-steps"], 10);
  EXPECT_EQ(awq["output-clips"], true);
  EXPECT_FALSE(awq.contains("block-epochs"));
  EXPECT_FALSE(gptq.contains("tune-blocks"));
  const Json omniquant = record(kOmniquantRecipe, "fixed-channels");
  EXPECT_EQ(omniquant["block-epochs"], 20);
  EXPECT_FALSE(omniquant.contains("learned-channels"));
}

}  // namespace
}  // namespace nibble
