// SPDX-License-Identifier: Apache-2.0
// The forward pass against goldens of Hugging Face transformers, and its invariances.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "engine/generation_config.h"
#include "engine/session.h"
#include "io/safetensors.h"
#include "tests/shared_data.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::vector<float> AllLogits(Model& model, std::span<const int32_t> ids) {
  KvCache cache = model.MakeCache();
  const Model::Sequence sequence = {ids, &cache};
  const float* x = model.Forward({&sequence, 1});
  const float* logits = model.Logits(x, static_cast<int64_t>(ids.size()));
  return {logits, logits + ids.size() * static_cast<size_t>(model.config().vocab_size)};
}

double LargestDifference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
  }
  return std::isfinite(std::accumulate(a.begin(), a.end(), 0.0)) ? largest : INFINITY;
}

// A copy of the folder whose config.json is `config`; the weights are linked.
std::string WithConfig(const fs::path& folder, const std::string& config) {
  const fs::path copy = fs::path(testing::TempDir()) / (folder.filename().string() + "-" + config);
  fs::remove_all(copy);
  fs::create_directories(copy);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("config")) fs::copy_file(entry.path(), copy / name);
  }
  fs::copy_file(folder / config, copy / "config.json");
  return copy.string();
}

struct Family {
  const char* folder;
  double tolerance;  // largest logit difference, from the bound stated with the goldens
};

class Architecture : public testing::TestWithParam<std::tuple<Family, const char*>> {};

TEST_P(Architecture, LogitsAndGreedyTokensMatchTransformers) {
  const auto& [family, config] = GetParam();
  const fs::path folder = fs::path(NIBBLE_SOURCE_DIR "/tests/data/architectures") / family.folder;
  const auto model = LoadModel(WithConfig(folder, config), "cpu", false);
  const SafetensorsFile golden((folder / "golden.safetensors").string());
  const auto ids = golden.tensors().at("input_ids").Copy<int32_t>();
  const auto logits = golden.tensors().at("logits").Copy<float>();
  for (size_t row = 0; row < 2; ++row) {
    const std::vector<float> ours = AllLogits(*model, std::span(ids).subspan(row * 40, 40));
    EXPECT_LE(LargestDifference(ours, std::span(logits).subspan(row * 40 * 512, 40 * 512)),
              family.tolerance);
  }
  const auto greedy = golden.tensors().at("greedy").Copy<int32_t>();
  Session session(*model);
  const Generation g = Generate(session, std::span(greedy).first(12), {.max_tokens = 16});
  EXPECT_EQ(g.ids, std::vector<int32_t>(greedy.begin() + 12, greedy.end()));
}

INSTANTIATE_TEST_SUITE_P(Llama, Architecture,
                         testing::Combine(testing::Values(Family{"llama2", 3e-5},
                                                          Family{"llama3_gqa_ropescale_tied", 1e-4},
                                                          Family{"mistral_sliding", 3e-5}),
                                          testing::Values("config.json", "config.v4.json")),
                         [](const auto& param) {
                           const bool older =
                               std::string(std::get<1>(param.param)) == "config.v4.json";
                           return std::string(std::get<0>(param.param).folder) +
                                  (older ? "_v4" : "_v5");
                         });

// models/README: logits of the last 32 of 256 tokens, and 32 greedy tokens.
void ExpectGoldenModel(const std::string& directory) {
  const auto model = LoadModel(directory, "cpu", false);
  const SafetensorsFile golden(directory + "/golden.safetensors");
  const auto ids = golden.tensors().at("input_ids").Copy<int32_t>();
  const auto expected = golden.tensors().at("logits_last32").Copy<float>();
  const std::vector<float> ours = AllLogits(*model, ids);
  const auto last = std::span(ours).last(expected.size());
  // fp32 sums in another order: eps * sqrt(depth of sums) * the logits' size, about 1e-4 of 20.
  EXPECT_LE(LargestDifference(last, expected), 2e-3);
  const auto greedy = golden.tensors().at("greedy32").Copy<int32_t>();
  Session session(*model);
  const Generation g = Generate(session, std::span(greedy).first(32), {.max_tokens = 32});
  EXPECT_EQ(g.ids, std::vector<int32_t>(greedy.begin() + 32, greedy.end()));
}

TEST(GoldenModel, Tiny) {
  ExpectGoldenModel(NIBBLE_SOURCE_DIR "/samples/tiny");
}

TEST(GoldenModel, Ref) {
  const std::string directory = test::SharedPath("models/ref");
  if (!fs::exists(directory)) GTEST_SKIP() << directory << " is absent";
  ExpectGoldenModel(directory);
}

class TinyModel : public testing::Test {
 protected:
  static Model& model() {
    static const auto model = LoadModel(NIBBLE_SOURCE_DIR "/samples/tiny", "cpu", false);
    return *model;
  }
  static std::vector<int32_t> Ids(size_t count, uint64_t seed) {
    Rng rng(seed);
    std::vector<int32_t> ids;
    for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(rng.Below(4096)));
    return ids;
  }
};

TEST_F(TinyModel, ChunkedPrefillGivesTheBitsOfAWholeOne) {
  const std::vector<int32_t> ids = Ids(150, 1);
  Session whole(model());
  const auto logits = whole.Append(ids);
  const std::vector<float> expected(logits.begin(), logits.end());
  for (size_t chunk : {1u, 7u, 64u}) {
    Session session(model());
    std::vector<float> last;
    for (size_t i = 0; i < ids.size(); i += chunk) {
      const auto part = std::span(ids).subspan(i, std::min(chunk, ids.size() - i));
      const auto l = session.Append(part);
      last.assign(l.begin(), l.end());
    }
    EXPECT_EQ(last, expected) << "chunks of " << chunk;
  }
}

TEST_F(TinyModel, ABatchGivesTheBitsOfSingleSequences) {
  const std::vector<int32_t> a = Ids(70, 2), b = Ids(33, 3);
  KvCache cache_a = model().MakeCache(), cache_b = model().MakeCache();
  const Model::Sequence both[] = {{a, &cache_a}, {b, &cache_b}};
  const float* x = model().Forward(both);
  const float* logits = model().Logits(x, 103);
  const std::vector<float> batched(logits, logits + 103 * 4096);
  std::vector<float> single = AllLogits(model(), a);
  const std::vector<float> logits_b = AllLogits(model(), b);
  single.insert(single.end(), logits_b.begin(), logits_b.end());
  EXPECT_EQ(batched, single);
}

// The model on a GPU: a whole prompt, and the same token by token, which replays recorded steps.
// bf16 loses up to 2^-9 of q, k, v, gate and up in each of six layers; losses add up like noise.
TEST_F(TinyModel, AGpuAgreesWithTheCpu) {
  std::unique_ptr<Backend> backend;
  try {
    backend = MakeBackend("cuda", false);
  } catch (const Error& error) {
    GTEST_SKIP() << "needs a GPU";
  }
  Model gpu(OpenNetwork(NIBBLE_SOURCE_DIR "/samples/tiny"), std::move(backend));
  const std::vector<int32_t> ids = Ids(150, 1);
  Session cpu(model()), whole(gpu), steps(gpu);
  const auto expected = cpu.Append(ids), logits = whole.Append(ids);
  double squares = 0, errors = 0, step_errors = 0;
  std::span<const float> stepped;
  for (const int32_t id : ids) stepped = steps.Append({&id, 1});
  for (size_t i = 0; i < expected.size(); ++i) {
    squares += std::pow(double{expected[i]}, 2);
    errors += std::pow(double{logits[i]} - expected[i], 2);
    step_errors += std::pow(double{stepped[i]} - expected[i], 2);
  }
  const double bound = std::sqrt(5 * 6) * 0x1p-9;
  EXPECT_LT(std::sqrt(errors / squares), bound);
  EXPECT_LT(std::sqrt(step_errors / squares), bound);
}

TEST_F(TinyModel, AppendRefusesWhatDoesNotFit) {
  Session session(model());
  EXPECT_THROW(session.Append(Ids(1025, 4)), Error);
  EXPECT_THROW(session.Append(std::vector<int32_t>{4096}), Error);
  EXPECT_THROW(session.Append(std::vector<int32_t>{-1}), Error);
}

TEST_F(TinyModel, GenerationStopsAtAStopIdAndAtTheContext) {
  Session free_run(model());
  const std::vector<int32_t> prompt = Ids(10, 5);
  const Generation g = Generate(free_run, prompt, {.max_tokens = 8});
  ASSERT_EQ(g.ids.size(), 8u);
  Session stopped(model());
  const auto first = std::find(g.ids.begin(), g.ids.end(), g.ids[3]);
  const Generation s = Generate(stopped, prompt, {.max_tokens = 8, .stop_ids = {7, g.ids[3]}});
  EXPECT_EQ(s.ids, std::vector<int32_t>(g.ids.begin(), first));
  Session full(model());
  EXPECT_EQ(Generate(full, Ids(1020, 6), {.max_tokens = 100}).ids.size(), 5u);
}

TEST(Sampler, TemperatureZeroIsTheArgMaxAndTopPCutsTheTail) {
  const std::vector<float> logits = {0.5f, 2.0f, 1.0f, 2.0f};
  Rng rng(1);
  EXPECT_EQ(Sample(logits, {}, rng), 1);
  // Probabilities of 2, 2, 1, 0.5: 0.38, 0.38, 0.14, 0.09.
  for (int i = 0; i < 200; ++i) {
    const int32_t id = Sample(logits, {.temperature = 1, .top_p = 0.7}, rng);
    EXPECT_TRUE(id == 1 || id == 3) << id;
    EXPECT_EQ(Sample(logits, {.temperature = 1, .top_k = 1}, rng), 1);
  }
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f)};  // 1/8, 2/8, 5/8
  Rng rng(2);
  std::vector<int> counts(3);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i)
    ++counts[static_cast<size_t>(Sample(logits, {.temperature = 1}, rng))];
  // Five standard deviations of a binomial share.
  for (int i = 0; i < 3; ++i) {
    const double p = std::vector<double>{0.125, 0.25, 0.625}[static_cast<size_t>(i)];
    EXPECT_NEAR(counts[static_cast<size_t>(i)] / double{kDraws}, p,
                5 * std::sqrt(p * (1 - p) / kDraws));
  }
}

TEST(GenerationConfig, ReadsOneOrSeveralStopIdsAndFallsBackToTheConfig) {
  const fs::path dir = fs::path(testing::TempDir()) / "generation-config";
  fs::create_directories(dir);
  std::ofstream(dir / "config.json") << R"({"eos_token_id": 9})";
  fs::remove(dir / "generation_config.json");
  EXPECT_EQ(LoadGenerationConfig(dir.string()).stop_ids, std::vector<int32_t>{9});
  std::ofstream(dir / "generation_config.json")
      << R"({"eos_token_id": [3, 4], "do_sample": true, "temperature": 0.6, "top_k": 20})";
  const GenerationConfig config = LoadGenerationConfig(dir.string());
  EXPECT_EQ(config.stop_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(config.sampling.temperature, 0.6);
  EXPECT_EQ(config.sampling.top_k, 20);
}

}  // namespace
}  // namespace nibble
