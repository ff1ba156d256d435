// SPDX-License-Identifier: Apache-2.0
// Calibration and the work directory on the sample model; the program as a whole is in tests/e2e.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/file.h"
#include "engine/gguf_model_testing.h"
#include "engine/pooling.h"
#include "engine/session.h"
#include "formats/packed_weights_testing.h"
#include "io/io_testing.h"
#include "models/import/open_network.h"
#include "models/random_model_testing.h"
#include "quantize/plan/make_plan.h"
#include "quantize/run/quantize.h"
#include "quantize/run/round_network.h"
#include "quantize/run/work_directory.h"
#include "quantize/walk/calibrate.h"
#include "quantize/walk/windows.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

TEST(Windows, AreRandomRepeatableAndInsideTheText) {
  std::vector<int32_t> ids(1000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const auto a = RandomWindows(ids, 50, 100, 1, "test");
  EXPECT_EQ(a, RandomWindows(ids, 50, 100, 1, "test"));
  EXPECT_NE(a, RandomWindows(ids, 50, 100, 2, "test"));
  ASSERT_EQ(a.size(), 5000u);
  for (size_t w = 0; w < 50; ++w) {
    for (size_t i = 1; i < 100; ++i)
      EXPECT_EQ(a[w * 100 + i], a[w * 100] + static_cast<int32_t>(i));
  }
  EXPECT_EQ(RandomWindows(ids, 1, 1000, 1, "test"), ids);
  EXPECT_THROW(RandomWindows(ids, 1, 1001, 1, "test"), Error);
}

TEST(Windows, UnseenOnesTouchNoneThatWasDrawn) {
  std::vector<int32_t> ids(1000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const auto drawn = RandomWindows(ids, 5, 100, 1, "test");
  const std::set<int32_t> seen(drawn.begin(), drawn.end());
  const auto unseen = UnseenWindows(ids, 5, 100, 1, 100, 30);
  ASSERT_GT(unseen.size(), 4u);
  std::set<int32_t> all;
  for (const auto& window : unseen) {
    ASSERT_EQ(window.size(), 30u);
    for (const int32_t id : window) EXPECT_TRUE(!seen.contains(id) && all.insert(id).second) << id;
  }
  const auto few = UnseenWindows(ids, 0, 100, 1, 2, 100);
  ASSERT_EQ(few.size(), 2u);
  EXPECT_EQ(few[0][0], 0);
  EXPECT_EQ(few[1][0], 500);
  EXPECT_TRUE(UnseenWindows(ids, 200, 100, 1, 4, 50).empty());
}

std::vector<int32_t> RandomIds(int count, uint64_t seed, uint64_t vocabulary = 4096) {
  Rng rng(seed);
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(rng.Below(vocabulary)));
  return ids;
}

// Runs the stages set by set and compares with the whole forward pass.
void ExpectStagesToPass(const Network& source) {
  const ModelConfig& c = source.config;
  const Plan plan = MakePlan(c, kQuarotRecipe);
  const Rotator rotator(source, kQuarotRecipe, plan, 0);
  const auto backend = MakeBackend("cpu", false);
  const std::vector<int32_t> ids = RandomIds(3 * 64, 1, static_cast<uint64_t>(c.vocab_size));
  for (const bool quantized : {false, true}) {
    Stream staged(*backend, c, plan, rotator.embedding(), ids, 64, quantized);
    Stream whole(*backend, c, plan, rotator.embedding(), ids, 64, quantized);
    for (int64_t i = 0; i < std::min<int64_t>(c.layers, 4); ++i) {
      const LayerWeights layer = StoreFloats(rotator.Layer(i));
      // The first window is looked at in every set, the second in one, the third in none.
      staged.Walk(layer, i, [&](LinearSet set) {
        staged.Input(set, 0);
        if (set.kind == LinearSet::kMlp) staged.Input(set, 1);
      });
      whole.Pass(layer, i);
    }
    EXPECT_TRUE(std::equal(staged.x(), staged.x() + 3 * 64 * c.hidden_size, whole.x()))
        << (quantized ? "quantized" : "float");
  }
}

TEST(Calibration, StagesMoveTheStreamAsTheForwardPassDoes) {
  ExpectStagesToPass(OpenNetwork(kTinyModel));
  for (const FamilyModel& family : FamilyModels()) {
    SCOPED_TRACE(family.name);
    const std::string name = "stages-" + std::string(family.name);
    ExpectStagesToPass(OpenNetwork(RandomModel(name, SmallConfig(family.changes))));
  }
}

// Both streams of GPTAQ have their windows in memory, and then in a file.
TEST(Calibration, WindowsInAFileGiveTheSameCodes) {
  const Network source = OpenNetwork(kTinyModel);
  const Plan plan = MakePlan(source.config, kW4a8Recipe);
  const Rotator rotator(source, kW4a8Recipe, plan, 0);
  const auto backend = MakeBackend("cpu", false);
  const std::vector<int32_t> ids = RandomIds(3 * 64, 4);
  SpillFile file(testing::TempDir());
  std::vector<LayerWeights> rounded;
  for (SpillFile* const spill : {static_cast<SpillFile*>(nullptr), &file}) {
    Calibration calibration(*backend, source.config, plan, kW4a8Recipe, rotator.embedding(), ids,
                            64, spill);
    std::map<Role, double> errors;
    for (int64_t i = 0; i < 2; ++i) {
      rounded.push_back(
          calibration.Round(rotator.Layer(i), i, errors, [](double, std::string_view) {}));
    }
  }
  for (Role role : kLayerRoles) {
    ExpectSamePlanes(rounded[1][role].weights, rounded[3][role].weights);
  }
}

TEST(WorkDirectory, SavedLayersComeBackAndBelongToTheirSettings) {
  const Network source = OpenNetwork(kTinyModel);
  Recipe recipe = kQuarotRecipe;
  recipe.weights = {.bits = 3, .symmetric = false, .clip = 0};
  const Plan plan = MakePlan(source.config, recipe);
  const Rotator rotator(source, recipe, plan, 0);
  LayerWeights layer = StoreFloats(rotator.Layer(2));
  for (Role role : kLayerRoles) {
    SetRounded(RoundNearest(rotator.Layer(2)[role], recipe.weights), layer[role]);
  }
  const std::string out = testing::TempDir() + "/work-directory";
  fs::remove_all(testing::TempDir() + "/work-directory.partial");
  {
    const WorkDirectory work(out, {{"seed", 1}}, false, false);
    work.SaveLayer(2, {layer, {{Role::kK, 0.25}}, true}, plan);
    EXPECT_THROW(WorkDirectory(out, {{"seed", 1}}, true, false), Error) << "two writers";
  }
  EXPECT_THROW(WorkDirectory(out, {{"seed", 1}}, false, false), Error)
      << "resume was not asked for";
  EXPECT_THROW(WorkDirectory(out, {{"seed", 2}}, true, false), Error) << "other settings";
  const WorkDirectory work(out, {{"seed", 1}}, true, false);
  EXPECT_FALSE(work.FindLayer(1, plan, source.config));
  const auto saved = work.FindLayer(2, plan, source.config);
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->errors.at(Role::kK), 0.25);
  EXPECT_TRUE(saved->scaled);
  for (Role role : kLayerRoles) {
    ExpectSamePlanes(saved->layer[role].weights, layer[role].weights);
  }
  // A torn file is redone, not trusted.
  fs::resize_file(work.File(LayerShardName(2)), 1000);
  EXPECT_FALSE(work.FindLayer(2, plan, source.config));
}

// Whole files with a digest of their own that no run saved: named, and nothing else happens.
TEST(WorkDirectory, WhatIsFoundIsAStrangersFile) {
  const Network source = OpenNetwork(kTinyModel);
  const ModelConfig& c = source.config;
  const int64_t n = c.hidden_size;
  const std::string out = testing::TempDir() + "/work-directory-strange";
  fs::remove_all(out + ".partial");
  const WorkDirectory work(out, {{"seed", 1}}, false, false);
  const auto refused = [&](const char* name, const auto& find) {
    try {
      find();
      ADD_FAILURE() << name << " was taken";
    } catch (const Error& error) {
      using testing::HasSubstr;
      EXPECT_THAT(error.what(),
                  testing::AllOf(HasSubstr(name), HasSubstr("is not what was saved there")));
    }
  };
  Rng rng(1);
  work.SaveRotation(RandomOrthogonal(n, rng));
  EXPECT_TRUE(work.FindRotation(n));
  const std::vector<double> twos(static_cast<size_t>(n * n), 2);
  const std::vector<float> floats(static_cast<size_t>(n * n), 1);
  const std::vector<std::vector<NamedTensor>> rotations = {
      {},
      {{"rotation", Tensor{DType::kF64, {0}, nullptr, nullptr}}},
      {{"rotation", Tensor::Of(DType::kF64, {n * n}, twos)}},
      {{"rotation", Tensor::Of(DType::kF64, {n, n}, twos)}},
      {{"rotation", Tensor::Of(DType::kF32, {n, n}, floats)}},
      {{"other", Tensor::Of(DType::kF64, {n, n}, twos)}}};
  for (const auto& tensors : rotations) {
    WriteShard(work.File(kRotationFile), tensors, {});
    refused(kRotationFile, [&] { work.FindRotation(n); });
  }
  const std::vector<int64_t> halves(3, 1);
  WriteShard(work.File(kLearningFile), {{"progress", Tensor::Of(DType::kI64, {3}, halves)}}, {});
  refused(kLearningFile, [&] { work.FindLearning(); });
  WriteShard(work.File(kFactorsFile), {{"head", Tensor::Of(DType::kF32, {n, n}, floats)}}, {});
  refused(kFactorsFile, [&] { work.FindLearned(c); });
  const Plan plan = MakePlan(c, kQuarotRecipe);
  const Rotator rotator(source, kQuarotRecipe, plan, 0);
  LayerWeights layer = StoreFloats(rotator.Layer(0));
  for (Role role : kLayerRoles) {
    SetRounded(RoundNearest(rotator.Layer(0)[role], kQuarotRecipe.weights), layer[role]);
  }
  const std::vector<NamedTensor> tensors = LayerTensors(0, Planned(layer, plan, 0));
  std::vector<NamedTensor> one_more = tensors;
  one_more.push_back({"more", Tensor::Of(DType::kI64, {3}, halves)});
  const auto find = [&](const std::vector<NamedTensor>& saved,
                        std::map<std::string, std::string> metadata) {
    metadata[kPlanDigestKey] = PlanDigest(plan);
    WriteShard(work.File(LayerShardName(0)), saved, metadata);
    return work.FindLayer(0, plan, c);
  };
  EXPECT_TRUE(find(tensors, {{"relative_errors", "{}"}}));
  refused("layer-00000", [&] { find(tensors, {}); });
  refused("layer-00000", [&] { find(tensors, {{"relative_errors", "3"}}); });
  refused("layer-00000", [&] { find(one_more, {{"relative_errors", "{}"}}); });
}

TEST(WorkDirectory, AnIdentityThatIsNoObjectIsRefused) {
  const std::string out = testing::TempDir() + "/work-directory-identity";
  for (const char* text : {"3", "[]", "null", "\"a\""}) {
    fs::remove_all(out + ".partial");
    fs::create_directory(out + ".partial");
    WriteFileAtomic(out + ".partial/provenance.json", text);
    EXPECT_THROW(WorkDirectory(out, {{"seed", 1}}, true, false), Error) << text;
  }
}

TEST(WorkDirectory, WhatAppearedMeanwhileIsNotReplaced) {
  const std::string out = testing::TempDir() + "/work-directory-appeared";
  fs::remove_all(out);
  fs::remove_all(out + ".partial");
  WorkDirectory work(out, {{"seed", 1}}, false, false);
  fs::create_directory(out);
  EXPECT_THROW(work.Publish(false), Error);
  EXPECT_TRUE(fs::is_empty(out));
  fs::remove_all(out);
}

// Tails of codes and of fp16, and permutations: all that a resumed layer must bring back.
TEST(WorkDirectory, TailsAndGathersComeBack) {
  const Network source = OpenNetwork(kTinyModel);
  Recipe recipe = kQuikRecipe;
  for (const int bits : {8, 16}) {
    recipe.tail_weights.bits = recipe.tail_activations.bits = bits;
    recipe.weights.sparse = bits == 8;
    const Plan plan = MakePlan(source.config, recipe);
    const Rotator rotator(source, recipe, plan, 0);
    const FloatLayer floats = rotator.Layer(1);
    LayerWeights layer = StoreFloats(floats);
    for (Role role : kLayerRoles) {
      const LinearPlan& linear = plan.at(1, role);
      SetRounded(RoundNearest(floats.weights[role], linear.weights, linear.tail), layer[role]);
      for (int32_t k = 0; linear.gather && k < source.config.inputs(1, role); ++k) {
        layer[role].input.gather.push_back(k ^ 1);
      }
    }
    const std::string out = testing::TempDir() + "/work-directory-tails";
    fs::remove_all(out + ".partial");
    const WorkDirectory work(out, {{"bits", bits}}, false, false);
    work.SaveLayer(1, {layer, {}}, plan);
    const auto saved = work.FindLayer(1, plan, source.config);
    ASSERT_TRUE(saved);
    EXPECT_FALSE(saved->scaled);
    for (Role role : kLayerRoles) {
      const PackedLinear &a = saved->layer[role], &b = layer[role];
      ExpectSamePlanes(a.weights, b.weights);
      EXPECT_EQ(a.weights.places.data == nullptr, bits == 16);
      EXPECT_GT(b.tail.cols, 0);
      ExpectSamePlanes(a.tail, b.tail);
      EXPECT_EQ(a.tail.values.data == nullptr, bits == 8);
      EXPECT_EQ(a.input.gather, b.input.gather);
    }
  }
}

class FromGguf : public TemporaryDirectoryTest {};

// The checkpoint is the same, whatever file the weights came in.
TEST_F(FromGguf, WeightsAndTokenizerAreThoseOfTheDirectory) {
  TinyGguf(OpenNetwork(kTinyModel)).Write(Path("tiny.gguf"));
  Recipe recipe = kQuarotRecipe;
  recipe.rounding = Rounding::kNearest;
  Quantize({.model = kTinyModel, .output = Path("a"), .recipe = recipe});
  Quantize({.model = Path("tiny.gguf"), .output = Path("b"), .recipe = recipe});
  for (const auto& entry : fs::directory_iterator(Path("a"))) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string name = entry.path().filename();
    EXPECT_EQ(ReadFile(Path("a/" + name), 1 << 26), ReadFile(Path("b/" + name), 1 << 26)) << name;
  }
  const std::string text = ReadFile(NIBBLE_SOURCE_DIR "/samples/evaluation.txt", 1 << 20);
  EXPECT_EQ(Tokenizer::Load(Path("b")).Encode(text), Tokenizer::Load(kTinyModel).Encode(text));
  for (const char* name : {"tokenizer_config.json", "generation_config.json"}) {
    EXPECT_TRUE(fs::exists(Path("b/") + name)) << name;
  }
}

using Pooled = TemporaryDirectoryTest;

TEST_F(Pooled, EmbeddingsStayWhatTheSourceSays) {
  fs::copy(kTinyModel, Path("model"));
  fs::create_directory(Path("model/1_Pooling"));
  WriteFileAtomic(Path("model/1_Pooling/config.json"), R"({"pooling_mode_lasttoken": true})");
  Recipe recipe = kQuarotRecipe;
  recipe.rounding = Rounding::kNearest;
  Quantize({.model = Path("model"), .output = Path("out"), .recipe = recipe});
  EXPECT_EQ(LoadPooling(Path("out")).tokens, Pooling::Tokens::kLast);
  EXPECT_EQ(PoolingText(Path("out")), PoolingText(Path("model")));
  Quantize({.model = kTinyModel, .output = Path("plain"), .recipe = recipe});
  EXPECT_FALSE(fs::exists(Path("plain/pooling.json")));
}

class RoundedWhileLoading : public TemporaryDirectoryTest {};

TEST_F(RoundedWhileLoading, InMemoryAsInACheckpoint) {
  for (const int bits : {4, 8, 16}) {
    const Recipe recipe = LoadingRecipe(bits, false);
    Quantize({.model = kTinyModel, .output = Path("out"), .recipe = recipe, .force = true});
    const Network written = OpenNetwork(Path("out")),
                  net = RoundNetwork(OpenNetwork(kTinyModel), recipe);
    EXPECT_EQ(net.caches[0].k, written.caches[0].k);
    ExpectSamePlanes(net.embedding, written.embedding);
    ExpectSamePlanes(net.head.weights, written.head.weights);
    EXPECT_EQ(BytesOf(net.final_norm), BytesOf(written.final_norm));
    ASSERT_EQ(net.layers.size(), written.layers.size());
    for (size_t i = 0; i < net.layers.size(); ++i) {
      EXPECT_EQ(BytesOf(net.layers[i].vectors[LayerVector::kMlpNorm]),
                BytesOf(written.layers[i].vectors[LayerVector::kMlpNorm]));
      for (const Role role : kLayerRoles) {
        EXPECT_EQ(net.layers[i][role].input.activations, written.layers[i][role].input.activations);
        ExpectSamePlanes(net.layers[i][role].weights, written.layers[i][role].weights);
      }
    }
  }
}

TEST_F(RoundedWhileLoading, FormatsAreKnownBeforeAWeightIsRounded) {
  for (const int bits : {4, 8, 16}) {
    const Network source = OpenNetwork(kTinyModel);
    const Recipe recipe = LoadingRecipe(bits, false);
    const Network rounded = RoundNetwork(source, recipe),
                  planned = PlannedNetwork(source, MakePlan(source, recipe));
    EXPECT_EQ(planned.caches[0].k, rounded.caches[0].k);
    EXPECT_EQ(planned.caches[0].rotation, rounded.caches[0].rotation);
    EXPECT_EQ(planned.embedding.format, rounded.embedding.format);
    const auto expect_same = [](const PackedLinear& a, const PackedLinear& b) {
      EXPECT_EQ(a.weights.format, b.weights.format);
      EXPECT_EQ(a.weights.rows, b.weights.rows);
      EXPECT_EQ(a.weights.cols, b.weights.cols);
      EXPECT_EQ(a.tail.cols, b.tail.cols);
      EXPECT_EQ(a.input, b.input);
    };
    expect_same(planned.head, rounded.head);
    ASSERT_EQ(planned.layers.size(), rounded.layers.size());
    for (size_t i = 0; i < planned.layers.size(); ++i) {
      for (const Role role : kLayerRoles)
        expect_same(planned.layers[i][role], rounded.layers[i][role]);
    }
  }
}

// The default's, by the tokens that there are to learn them from: 64 sequences.
TEST_F(RoundedWhileLoading, ScalesAreLearnedWhereTheyCanBe) {
  fs::copy(kTinyModel, Path("model"));
  Json config = ReadJsonFile(Path("model/config.json"));
  config["max_position_embeddings"] = 32;
  WriteFileAtomic(Path("model/config.json"), config.dump());
  const auto quantize = [&](const Recipe& recipe, int64_t windows) {
    const QuantizeReport report = Quantize({.model = Path("model"),
                                            .output = Path("out"),
                                            .recipe = recipe,
                                            .calibration_windows = windows,
                                            .force = true});
    EXPECT_EQ(report.plan.at(0, Role::kQ).input_scales, report.scale_tuning_skipped.empty());
    const Network net = OpenNetwork(report.output);
    const PackedLinear& q = net.layers[0][Role::kQ];
    EXPECT_EQ(q.input.scales.empty(), !report.scale_tuning_skipped.empty());
    for (const float scale : q.input.scales) EXPECT_NE(scale, 1);
    return report.scale_tuning_skipped;
  };
  Recipe recipe = kW4a8Recipe;
  EXPECT_EQ(quantize(recipe, 64), "");
  EXPECT_THAT(quantize(recipe, 63), testing::HasSubstr("2048 are enough"));
  recipe.rounding = Rounding::kNearest;
  EXPECT_THAT(quantize(recipe, 64), testing::HasSubstr("nearest"));
}

TEST(Estimate, MatchesWhatIsWritten) {
  QuantizeOptions options = {.model = kTinyModel, .output = testing::TempDir() + "/estimate"};
  fs::remove_all(options.output + ".partial");  // of a run that was killed
  options.recipe = kQuarotRecipe;
  options.recipe.rounding = Rounding::kNearest;
  options.force = true;
  const QuantizeReport planned = PlanQuantization(options), done = Quantize(options);
  // Shapes decide the tensors' bytes; headers, tokenizer and JSON files come on top.
  EXPECT_GT(done.output_bytes, planned.estimate.output_bytes);
  EXPECT_LT(done.output_bytes, planned.estimate.output_bytes + 1e6);
  EXPECT_EQ(done.layers.size(), 6u);
}

}  // namespace
}  // namespace nibble
