// SPDX-License-Identifier: Apache-2.0
#include "models/plan.h"

#include <cmath>
#include <set>

#include "models/checkpoint/packed_checkpoint_testing.h"

namespace nibble {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(PlanJson, RoundTripLosesNothing) {
  const ModelConfig config = TestConfig();
  const Plan plan = TestPlan(config);
  const Plan back = PlanFromJson(ParseJson(ToJson(plan).dump(), "text"), config, "text");
  EXPECT_EQ(ToJson(back), ToJson(plan));
  EXPECT_EQ(PlanDigest(back), PlanDigest(plan));
  EXPECT_EQ(back.provenance, plan.provenance);
  for (Role role : kLayerRoles) {
    const LinearPlan &a = back.at(1, role), &b = plan.at(1, role);
    EXPECT_EQ(a.weights, b.weights);
    EXPECT_EQ(a.activations, b.activations);
    EXPECT_EQ(a.input_transform, b.input_transform);
    EXPECT_EQ(a.input_scales, b.input_scales);
    EXPECT_EQ(a.gather, b.gather);
    EXPECT_EQ(a.tail, b.tail);
    EXPECT_EQ(a.output_transform, b.output_transform);
  }
  const KvSpec kv = LayerCache(config, back, 0);
  EXPECT_EQ(kv.k, plan.k);
  EXPECT_EQ(kv.v, plan.v);
  EXPECT_EQ(kv.rotation, plan.kv_rotation);
  EXPECT_EQ(back.center_keys, plan.center_keys);
  EXPECT_EQ(kv.kv_heads, 2);
  EXPECT_EQ(kv.head_dim, 16);
}

// Plans that ask for no precision have the JSON and the digest of those from before it was a field.
TEST(PlanJson, PrecisionOfATransformIsWrittenWhereItIsAskedFor) {
  const ModelConfig config = TestConfig();
  Plan plan = TestPlan(config);
  const std::string text = ToJson(plan).dump(), digest = PlanDigest(plan);
  EXPECT_THAT(text, Not(HasSubstr("transform_bits")));
  for (const int bits : {16, 32}) {
    plan.linears["layers.0.down"].transform_bits = bits;
    Json json = ToJson(plan);
    const Plan back = PlanFromJson(json, config, "p");
    EXPECT_EQ(back.at(0, Role::kDown).transform_bits, bits);
    EXPECT_EQ(back.at(0, Role::kDown).Input(160).transform_bits, bits);
    EXPECT_EQ(back.at(1, Role::kDown).transform_bits, 0);
    EXPECT_NE(PlanDigest(back), digest);
    json["linears"]["layers.0.down"].erase("transform_bits");
    EXPECT_EQ(json.dump(), text);
    plan.linears["layers.0.down"].LeaveOutTransform();
    EXPECT_FALSE(ToJson(plan)["linears"]["layers.0.down"].contains("transform_bits"));
    plan = TestPlan(config);
  }
}

TEST(PlanJson, LayersMayCacheOtherwise) {
  const ModelConfig config = TestConfig();
  Plan plan = TestPlan(config);
  const std::string digest = PlanDigest(plan);
  plan.layer_caches[1] = {.k = {.bits = 2, .symmetric = false}, .v = plan.v};
  const Plan back = PlanFromJson(ToJson(plan), config, "p");
  EXPECT_EQ(back.layer_caches, plan.layer_caches);
  EXPECT_EQ(LayerCache(config, back, 0).k, plan.k);
  EXPECT_EQ(LayerCache(config, back, 1).k.bits, 2);
  EXPECT_EQ(LayerCache(config, back, 1).v, plan.v);
  EXPECT_EQ(LargestCache(LayerCaches(config, back)).k, plan.k);
  EXPECT_EQ(PlanDigest(back), digest) << "no tensor depends on it";
}

TEST(PlanJson, ACacheMayHaveARecentForm) {
  const ModelConfig config = TestConfig();
  Plan plan = TestPlan(config);
  plan.k = {.bits = 4, .symmetric = false, .clip = 0.9};
  plan.v = {.bits = 16};
  const std::string digest = PlanDigest(plan);
  plan.recent_bits = 8;
  plan.layer_caches[1] = {.k = {.bits = 8}, .v = {.bits = 8}};
  Json json = ToJson(plan);
  const Plan back = PlanFromJson(json, config, "p");
  EXPECT_EQ(PlanDigest(back), digest) << "no tensor depends on it";
  const KvSpec cache = LayerCache(config, back, 0);
  EXPECT_EQ(cache.recent_bits, 8);
  EXPECT_EQ(cache.Recent().k, (FormatSpec{.bits = 8, .symmetric = false, .clip = 1}));
  EXPECT_EQ(cache.Recent().v, plan.v) << "it has more bits as it is";
  EXPECT_EQ(LayerCache(config, back, 1).recent_bits, 0) << "nothing there has fewer";
  EXPECT_EQ(FinestLayerCaches(config, back)[0].recent_bits, 0);
  EXPECT_EQ(FinestLayerCaches(config, back)[0].k, cache.Recent().k);
  for (const int bits : {-1, 9, 16}) {
    json["cache"]["recent_bits"] = bits;
    EXPECT_THROW(PlanFromJson(json, config, "p"), Error) << bits;
  }
}

TEST(PlanJson, CachesOfLayersThatHaveNoneAreRefused) {
  ModelConfig config = TestConfig();
  config.specs.resize(static_cast<size_t>(config.layers));
  config.specs[1].kv_layer = 0;
  Plan plan = TestPlan(config);
  plan.layer_caches[0] = {.k = {.bits = 2, .symmetric = false}, .v = plan.v};
  EXPECT_EQ(LayerCache(config, plan, 1).k.bits, 2) << "those of the layer whose keys it reads";
  plan.layer_caches[1] = plan.layer_caches[0];
  EXPECT_THAT(ErrorOf([&] { PlanFromJson(ToJson(plan), config, "p"); }),
              HasSubstr("cache.layers.1: this layer has no cache of its own"));
  for (const char* name : {"2", "-1", "01", "x"}) {
    Json json = ToJson(TestPlan(config));
    json["cache"]["layers"][name] = {{"k", ToJson(plan.k)}, {"v", ToJson(plan.v)}};
    EXPECT_THAT(ErrorOf([&] { PlanFromJson(json, config, "p"); }), HasSubstr("cache.layers"))
        << name;
  }
}

TEST(PlanJson, CenteredKeysAreRefusedWhereScoresSeeThem) {
  ModelConfig capped = TestConfig(), sinks = TestConfig();
  capped.attention_softcap = 30;
  sinks.vectors.push_back(LayerVector::kSinks);
  for (const ModelConfig& config : {capped, sinks}) {
    EXPECT_THAT(ErrorOf([&] { PlanFromJson(ToJson(TestPlan(config)), config, "p"); }),
                AllOf(HasSubstr("p: cache"), HasSubstr("cannot be centered")));
  }
}

TEST(PlanJson, ForeignValuesAreRefused) {
  struct Case {
    const char* pointer;  // null value: the field is removed
    Json value;
    const char* named;
  };
  const Case cases[] = {
      {"/quant_method", "awq", "\"awq\""},
      {"/format_version", 1, "format version 1, this build reads 2"},
      {"/format_version", "1", "format_version"},
      {"/surprise", 1, "surprise"},
      {"/norms_folded", Json(), "norms_folded"},
      {"/norms_folded", 1, "norms_folded"},
      {"/provenance", Json(), "provenance"},
      {"/cache/surprise", 1, "surprise"},
      {"/cache/centered", 1, "centered"},
      {"/cache/page_tokens", 32, "pages of 64 tokens"},
      {"/cache/k/bits", 9, "bits 9"},
      {"/cache/layers", 1, "cache.layers"},
      {"/cache/layers", {{"0", Json::object()}}, "\"k\" is missing"},
      {"/cache/k/clip", 0, "clip"},
      {"/cache/k/group", 32, "group 32 does not divide head_dim 16"},
      {"/cache/v/group", -8, "group -8"},
      {"/cache/rotation", ToJson(FullHadamard(32)), "width 32, heads of 16"},
      {"/linears/layers.0.q/surprise", 1, "surprise"},
      {"/linears/layers.0.q/weights/surprise", 1, "surprise"},
      {"/linears/layers.0.q/weights/bits", 1, "bits 1"},
      {"/linears/layers.0.q/weights/bits", 9, "bits 9"},
      {"/linears/layers.0.q/weights/bits", 4.5, "bits"},
      {"/linears/layers.0.q/weights/symmetric", 0, "symmetric"},
      {"/linears/layers.0.q/weights/group", 16, "group 16 must be a multiple of 32"},
      {"/linears/layers.0.q/weights/group", 96, "group 96"},
      {"/linears/layers.0.q/weights/group", -32, "group -32"},
      {"/linears/layers.0.q/weights/group", INT64_MAX, "group"},
      {"/linears/layers.0.q/weights/clip", 1.5, "clip 1.5"},
      {"/linears/layers.0.q/weights/clip", -0.1, "clip -0.1"},
      {"/linears/layers.0.q/activations/clip", 0, "clip above 0"},
      {"/linears/layers.0.q/activations/signed_scale", 1, "signed_scale"},
      {"/linears/layers.0.q/weights/signed_scale", true, "sign"},
      {"/linears/layers.0.q/weights/row_share", 2, "row_share"},
      {"/cache/v/signed_scale", true, "not for a cache"},
      {"/cache/k/sparse", "2:4", "not for a cache"},
      {"/linears/layers.0.q/weights/sparse", "4:8", "4:8"},
      {"/linears/layers.0.q/activations/sparse", "2:4", "only weights"},
      {"/linears/head/weights/sparse", "2:4", "sparse weights need codes"},
      {"/linears/layers.0.q/input_transform", ToJson(FullHadamard(128)), "width 128"},
      {"/linears/layers.0.q/output_transform", ToJson(FullHadamard(128)),
       "width 128 on 64 outputs"},
      {"/linears/layers.0.q/output_transform", 1, "output_transform"},
      {"/linears/layers.1.o/output_transform", ToJson(FullHadamard(64)), "nothing transforms"},
      {"/linears/layers.1.down/output_transform", ToJson(FullHadamard(64)), "nothing transforms"},
      {"/linears/head/output_transform", ToJson(FullHadamard(512)), "nothing transforms"},
      {"/linears/layers.1.k/activations/bits", 8, "layers.1.q and layers.1.k"},
      {"/linears/layers.1.up/input_transform", ToJson(FullHadamard(64)),
       "layers.1.gate and layers.1.up"},
      {"/linears/layers.0.down/input_transform", ToJson(FullHadamard(64)), "width 160"},
      {"/linears/layers.0.down/transform_bits", 8, "16 or 32, not 8"},
      {"/linears/layers.0.down/transform_bits", "16", "transform_bits"},
      {"/linears/layers.0.q/transform_bits", 16, "without a transform"},
      {"/linears/layers.1.up", Json(), "layers.1.up"},
      {"/linears/layers.1.up/gather", 1, "gather"},
      {"/linears/layers.1.up/input_scales", 1, "input_scales"},
      {"/linears/layers.1.up/input_scales", false, "layers.1.gate and layers.1.up"},
      {"/linears/layers.1.up/gather", false, "layers.1.gate and layers.1.up"},
      {"/linears/layers.1.up/tail/columns", 0, "tail of 0"},
      {"/linears/layers.1.up/tail/columns", -32, "tail of -32"},
      {"/linears/layers.1.up/tail/columns", 64, "tail of 64 columns of 64"},
      {"/linears/layers.1.up/tail/columns", INT64_MAX, "columns of 64"},
      {"/linears/layers.1.up/tail/columns", 16, "group 32"},
      {"/linears/layers.1.up/tail/surprise", 1, "surprise"},
      {"/linears/layers.1.up/tail/weights/bits", 9, "bits 9"},
      {"/linears/layers.1.up/tail/weights/group", 64, "layers.1.up.tail: group 64"},
      {"/linears/layers.1.up/tail/activations/clip", 0, "clip above 0"},
      {"/linears/layers.1.up/tail", Json(), "layers.1.gate and layers.1.up"},
      {"/linears/head", Json(), "head"},
      {"/linears/embedding", Json(), "embedding"},
      {"/linears/embedding/activations/bits", 8, "embedding: it has weights only"},
      {"/linears/embedding/input_transform", ToJson(FullHadamard(64)), "weights only"},
      {"/tied_head", true, "the model has two tables"},
      {"/linears/layers.0.q/activations/bits", 32, "have 16 bits"},
      {"/cache/k/bits", 33, "bits 33"},
      {"/linears/layers.2.q", ToJson(TestPlan(TestConfig()))["linears"]["layers.1.q"],
       "17 linears"},
  };
  const ModelConfig config = TestConfig();
  const Json good = ToJson(TestPlan(config));
  for (const Case& c : cases) {
    Json bad = good;
    bad[Json::json_pointer(c.pointer)] = c.value;
    EXPECT_THAT(ErrorOf([&] { PlanFromJson(bad, config, "dir/config.json"); }),
                AllOf(HasSubstr("dir/config.json"), HasSubstr(c.named)))
        << c.pointer << " = " << c.value;
  }
}

// A head that shares the embedding's table has its formats and nothing of its own in front.
TEST(PlanJson, ATiedHeadHasNoInputScales) {
  ModelConfig config = TestConfig();
  config.tied_head = true;
  Plan plan = TestPlan(config);
  plan.tied_head = true;
  EXPECT_TRUE(PlanFromJson(ToJson(plan), config, "c").tied_head);
  plan.norms_folded = plan.head_rotation = true;
  EXPECT_TRUE(PlanFromJson(ToJson(plan), config, "c").head_rotation);
  plan.norms_folded = false;
  EXPECT_THAT(ErrorOf([&] { PlanFromJson(ToJson(plan), config, "c"); }), HasSubstr("head_turn"));
  plan.head_rotation = false;
  plan.linears["head"].input_scales = true;
  EXPECT_THAT(ErrorOf([&] { PlanFromJson(ToJson(plan), config, "c"); }), HasSubstr("tied_head"));
}

TEST(PlanJson, GroupsOfWeightsAndActivationsMustNest) {
  ModelConfig config = TestConfig();
  config.intermediate_size = 192;
  Plan plan = TestPlan(config);
  LinearPlan& down = plan.linears["layers.0.down"];
  down.weights.second_level = false;  // which takes no groups of activations at all
  down.weights.group = 64;
  down.activations.group = 96;
  EXPECT_THAT(ErrorOf([&] { PlanFromJson(ToJson(plan), config, "c"); }),
              AllOf(HasSubstr("layers.0.down"), HasSubstr("do not divide each other")));
  down.activations.group = 192;
  EXPECT_EQ(PlanFromJson(ToJson(plan), config, "c").at(0, Role::kDown).activations.group, 192);
}

// Settings that a plan may have beside 16 bits must not reach a kernel, which would clip or shift.
TEST(LinearPlan, InputsWithoutCodesHaveNothingButBits) {
  const FormatSpec any = {.bits = 16, .symmetric = false, .group = 32, .clip = 0.9};
  const LinearPlan plan = {
      .activations = any,
      .tail = {.columns = 32, .activations = {.bits = 8, .symmetric = false, .clip = 0.9}}};
  const InputSpec input = plan.Input(64);
  EXPECT_EQ(input.activations, FormatSpec{.bits = 16});
  EXPECT_EQ(input.tail_activations, plan.tail.activations);
}

TEST(PlanDigestTest, ChangesWithEveryFieldButProvenance) {
  const ModelConfig config = TestConfig();
  const Plan plan = TestPlan(config);
  std::set<std::string> digests = {PlanDigest(plan)};
  size_t edits = 1;
  const auto expect_new = [&](const std::function<void(Plan&)>& edit) {
    Plan edited = plan;
    edit(edited);
    digests.insert(PlanDigest(edited));
    EXPECT_EQ(digests.size(), ++edits);
  };
  const auto expect_format = [&](const std::function<FormatSpec&(Plan&)>& format) {
    expect_new([&](Plan& p) { format(p).bits = 7; });
    expect_new([&](Plan& p) { format(p).symmetric ^= true; });
    expect_new([&](Plan& p) { format(p).group += 64; });
    expect_new([&](Plan& p) { format(p).clip = 0.75; });
  };
  for (const auto& [linear, unused] : plan.linears) {
    const std::string name = linear;
    expect_format([&](Plan& p) -> FormatSpec& { return p.linears[name].weights; });
    expect_format([&](Plan& p) -> FormatSpec& { return p.linears[name].activations; });
    expect_new([&](Plan& p) { p.linears[name].input_transform = FullHadamard(32); });
    expect_new([&](Plan& p) { p.linears[name].input_transform.outer = 2; });
    expect_new([&](Plan& p) { p.linears[name].output_transform = FullHadamard(32); });
    expect_new([&](Plan& p) { p.linears[name].transform_bits = 16; });
    expect_new([&](Plan& p) { p.linears[name].weights.sparse ^= true; });
    expect_new([&](Plan& p) { p.linears[name].weights.codebook = Codebook::kE8p; });
    expect_new([&](Plan& p) { p.linears[name].input_scales ^= true; });
    expect_new([&](Plan& p) { p.linears[name].gather ^= true; });
    expect_new([&](Plan& p) { p.linears[name].tail.columns = 17; });
    expect_new([&](Plan& p) { p.linears[name].tail = {.columns = 17, .weights = {.bits = 6}}; });
    expect_new(
        [&](Plan& p) { p.linears[name].tail = {.columns = 17, .activations = {.bits = 6}}; });
  }
  expect_format([](Plan& p) -> FormatSpec& { return p.k; });
  expect_format([](Plan& p) -> FormatSpec& { return p.v; });
  expect_new([](Plan& p) { p.linears["layers.0.q"].activations.signed_scale = true; });
  expect_new([](Plan& p) { p.kv_rotation = {}; });
  expect_new([](Plan& p) { p.center_keys = false; });
  expect_new([](Plan& p) { p.norms_folded = false; });
  Plan elsewhere = plan;
  elsewhere.provenance = {{"recipe", "other"}, {"seed", 8}};
  EXPECT_EQ(PlanDigest(elsewhere), PlanDigest(plan));
}

}  // namespace
}  // namespace nibble
