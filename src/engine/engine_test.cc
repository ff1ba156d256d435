// SPDX-License-Identifier: Apache-2.0
// The forward pass against goldens of trained models, and its invariances.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>

#include "compute/gpu_testing.h"
#include "engine/engine_testing.h"
#include "engine/generation_config.h"
#include "engine/session.h"
#include "engine/window_bos.h"
#include "io/io_testing.h"
#include "io/safetensors.h"
#include "models/import/open_network.h"
#include "models/random_model_testing.h"
#include "tests/shared_data.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

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
  NIBBLE_SKIP_WITHOUT_DATA("models/ref");
  ExpectGoldenModel(test::DataPath("models/ref"));
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
TEST_F(TinyModel, AGpuAgreesWithTheCpu) {
  std::unique_ptr<Backend> backend = GpuOrNull();
  if (!backend) GTEST_SKIP() << "needs a GPU";
  Model gpu(OpenNetwork(NIBBLE_SOURCE_DIR "/samples/tiny"), std::move(backend));
  const std::vector<int32_t> ids = Ids(150, 1);
  Session cpu(model()), whole(gpu), steps(gpu);
  const auto expected = cpu.Append(ids), logits = whole.Append(ids);
  std::span<const float> stepped;
  for (const int32_t id : ids) stepped = steps.Append({&id, 1});
  EXPECT_LT(RelativeError(logits, expected), GpuError());
  EXPECT_LT(RelativeError(stepped, expected), GpuError());
}

TEST_F(TinyModel, AppendRefusesWhatDoesNotFit) {
  Session session(model());
  EXPECT_THROW(session.Append(Ids(1025, 4)), Error);
  EXPECT_THROW(session.Append(std::vector<int32_t>{4096}), Error);
  EXPECT_THROW(session.Append(std::vector<int32_t>{-1}), Error);
}

TEST_F(TinyModel, SamplingFollowsItsSeed) {
  const auto sample = [&](uint64_t seed) {
    Session session(model());
    return Generate(session, Ids(5, 8),
                    {.max_tokens = 12, .sampling = {.temperature = 1}, .seed = seed})
        .ids;
  };
  const std::vector<int32_t> first = sample(1);
  EXPECT_EQ(sample(1), first);
  EXPECT_NE(sample(2), first);
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
  const Generation f = Generate(full, Ids(1020, 6), {.max_tokens = 100});
  EXPECT_EQ(f.ids.size(), 5u);
  Session reported(model());
  const Generation t =
      Generate(reported, prompt, {.max_tokens = 8}, [&](int32_t id) { return id != g.ids[3]; });
  EXPECT_EQ(t.ids, std::vector<int32_t>(g.ids.begin(), first + 1));
  EXPECT_EQ(t.finish, Finish::kStop);
  EXPECT_EQ(g.finish, Finish::kLength);
  EXPECT_EQ(s.finish, Finish::kStop);
  EXPECT_EQ(f.finish, Finish::kContext);
}

// A model whose config.json claims a long context costs what its sequences use, and no bit differs.
TEST(Context, AnglesFollowTheTokensNotTheClaim) {
  const auto load = [&](int64_t context) {
    const Json config = SmallConfig(
        {{"model_type", "mistral"}, {"sliding_window", 8}, {"max_position_embeddings", context}});
    return LoadModel(RandomModel("context", config), "cpu", false);
  };
  Rng rng(7);
  std::vector<int32_t> ids;
  for (int i = 0; i < 8300; ++i) ids.push_back(static_cast<int32_t>(rng.Below(64)));
  const auto logits = [](Session& session, std::span<const int32_t> tokens) {
    const auto row = session.Append(tokens);
    return std::vector<float>(row.begin(), row.end());
  };
  const auto claims = load(1 << 24), exact = load(8300), small = load(256);
  EXPECT_EQ(claims->context(), 1 << 24);
  EXPECT_EQ(claims->rope_positions(), 8192);
  EXPECT_EQ(small->rope_positions(), 256);
  Session a(*claims), b(*exact), c(*small);
  const auto first = logits(a, std::span(ids).first(256));
  EXPECT_EQ(first, logits(c, std::span(ids).first(256)));
  EXPECT_EQ(first, logits(b, std::span(ids).first(256)));
  EXPECT_EQ(claims->rope_positions(), 8192);
  const auto last = logits(a, std::span(ids).subspan(256));  // beyond the first table
  EXPECT_EQ(claims->rope_positions(), 16384);
  EXPECT_EQ(last, logits(b, std::span(ids).subspan(256)));
  EXPECT_EQ(exact->rope_positions(), 8300);
  Session again(*claims);  // the grown table from the start
  EXPECT_EQ(logits(again, ids), last);
}

TEST(NotFinite, LogitsAreRefusedInsteadOfSampled) {
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    const auto model = TinyWithHeadValue(value);
    Session session(*model);
    const std::vector<int32_t> prompt = {0, 17, 5};
    EXPECT_THAT(ErrorOf([&] { Generate(session, prompt, {.max_tokens = 4}); }),
                testing::AllOf(testing::HasSubstr(kTinyModel),
                               testing::HasSubstr("after 3 tokens: the logits are NaN")));
  }
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

// Draws from logits log(weights) and compares with these probabilities (times any factor).
void ExpectShares(const std::vector<double>& weights, const Sampling& sampling,
                  const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double w : weights) logits.push_back(static_cast<float>(std::log(w)));
  Rng rng(2);
  std::vector<int> counts(logits.size());
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(Sample(logits, sampling, rng))];
  const double total = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  for (size_t i = 0; i < counts.size(); ++i) {
    const double p = probabilities[i] / total;  // 0 means never
    // Five standard deviations of a binomial share.
    EXPECT_NEAR(counts[i] / double{kDraws}, p, 5 * std::sqrt(p * (1 - p) / kDraws)) << i;
  }
}

// The likeliest tokens are enough for the sampling of answers; where thousands are alike they are
// not, and a draw looks at all of them.
TEST(Sampler, ADrawNeedsFewTokensOfMany) {
  const Sampling answers = GenerationConfig().ForAnswers();
  const LikelyQuery query = *QueryOf(answers);
  std::vector<float> logits(100000);
  Rng rng(3), few(4), all(4);
  for (float& logit : logits) logit = static_cast<float>(rng.Normal());
  logits[4] = -std::numeric_limits<float>::infinity();  // as a grammar's mask leaves it
  for (int i = 0; i < 50; ++i) {
    for (size_t j = 0; j < 5; ++j) logits[j * 7919] = 10 + static_cast<float>(rng.Normal());
    const Likely likely = FindLikely(logits, query);
    EXPECT_LE(likely.tokens.size(), 5u);
    double total = 0;
    for (const float logit : logits) {
      total += std::exp((double{logit} - double{likely.tokens[0].logit}) * double{query.cold});
    }
    EXPECT_NEAR(likely.total, total, 1100 * 0x1p-24 * total);  // 1024 additions in a lane
    const std::optional<int32_t> id = Draw(likely, answers, few);
    EXPECT_EQ(id, Sample(logits, answers, all)) << i;
  }
  logits.assign(logits.size(), 1);
  EXPECT_EQ(Draw(FindLikely(logits, query), answers, few), std::nullopt);
  EXPECT_NE(Sample(logits, answers, all), Sample(logits, answers, all));  // one of 95,000
  EXPECT_FALSE(QueryOf({.temperature = 1}).has_value());
  EXPECT_FALSE(QueryOf({.temperature = 1, .top_k = 50000}).has_value());
}

// Shares of the likeliest: 1, 0.4, 0.2; a bound that one meets keeps it.
TEST(Sampler, MinPKeepsWhatIsLikelyBesideTheArgMax) {
  ExpectShares({1, 2, 5}, {.temperature = 1, .min_p = 0.3}, {0, 2, 5});
  ExpectShares({1, 2, 5}, {.temperature = 1, .min_p = 0.1}, {1, 2, 5});
  ExpectShares({1, 2, 5}, {.temperature = 1, .min_p = 1}, {0, 0, 5});
}

// Of weights 1, 2, 5 the entropy is 0.900 and the surprises are 2.08, 1.39 and 0.47: the third is
// 0.43 away, the second 0.49.
TEST(Sampler, TypicalKeepsWhatIsAboutAsSurprisingAsTheEntropy) {
  ExpectShares({1, 2, 5}, {.temperature = 1, .typical = 0.6}, {0, 0, 5});
  ExpectShares({1, 2, 5}, {.temperature = 1, .typical = 0.8}, {0, 2, 5});
  // Five of weight 1 beside one of 3: entropy 1.667, surprises 2.079 and 0.981.
  ExpectShares({1, 1, 1, 1, 1, 3}, {.temperature = 1, .typical = 0.6}, {1, 1, 1, 1, 1, 0});
}

TEST(Sampler, PenaltiesLookAtWhatOccurred) {
  const std::vector<int32_t> prompt = {0, 2, 2}, written = {1, 2, 1};
  const auto penalized = [&](const Sampling& sampling) {
    std::vector<float> logits = {2, -3, 4, 5};
    TokenCounts counts;
    counts.AddPrompt(prompt);
    for (const int32_t id : written) counts.AddWritten(id);
    counts.Penalize(logits, sampling);
    return logits;
  };
  EXPECT_EQ(penalized({}), (std::vector<float>{2, -3, 4, 5}));
  EXPECT_EQ(penalized({.repetition = 2}), (std::vector<float>{1, -6, 2, 5}));
  EXPECT_EQ(penalized({.presence = 0.5}), (std::vector<float>{2, -3.5, 3.5, 5}));
  EXPECT_EQ(penalized({.frequency = 0.5}), (std::vector<float>{2, -4, 3.5, 5}));
  EXPECT_EQ(penalized({.repetition = 2, .presence = 1, .frequency = 1}),
            (std::vector<float>{1, -9, 0, 5}));
}

TEST_F(TinyModel, APenaltyOnRepetitionChangesTheText) {
  Session free(model()), bound(model());
  const std::vector<int32_t> prompt = Ids(10, 5);
  const auto ids = Generate(bound, prompt, {.max_tokens = 8, .sampling = {.presence = 100}}).ids;
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), 8u) << "no token twice";
  EXPECT_EQ(ids[0], Generate(free, prompt, {.max_tokens = 1}).ids[0]);
}

TEST_F(TinyModel, WhatIsForgottenIsComputedAnew) {
  Session once(model()), again(model());
  const std::vector<int32_t> ids = Ids(100, 9);
  const auto logits = [](Session& session, std::span<const int32_t> tokens) {
    const auto row = session.Append(tokens);
    return std::vector<float>(row.begin(), row.end());
  };
  const auto expected = logits(once, ids);
  again.Append(Ids(90, 10));
  again.Truncate(0);
  again.Append(std::span(ids).first(70));
  again.Append(Ids(20, 11));
  again.Truncate(70);
  EXPECT_EQ(logits(again, std::span(ids).subspan(70)), expected);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<double> weights = {1, 2, 5};
  ExpectShares(weights, {.temperature = 1}, weights);
  ExpectShares(weights, {.temperature = 0.5}, {1, 4, 25});  // w^(1 / temperature)
  ExpectShares(weights, {.temperature = 2}, {1, std::sqrt(2.0), std::sqrt(5.0)});
}

// The token that crosses the threshold is kept, those behind it are not; what is kept is
// renormalized, and the temperature comes first.
TEST(Sampler, TopPAndTopKKeepTheMostLikely) {
  const std::vector<double> weights = {2, 1, 4, 3};  // of 10
  ExpectShares(weights, {.temperature = 1, .top_p = 0.35}, {0, 0, 1, 0});
  ExpectShares(weights, {.temperature = 1, .top_p = 0.45}, {0, 0, 4, 3});
  ExpectShares(weights, {.temperature = 1, .top_p = 0.65}, {0, 0, 4, 3});
  ExpectShares(weights, {.temperature = 1, .top_p = 0.75}, {2, 0, 4, 3});
  ExpectShares(weights, {.temperature = 1, .top_p = 0.95}, weights);
  ExpectShares(weights, {.temperature = 1, .top_p = 1}, weights);
  ExpectShares(weights, {.temperature = 0.5, .top_p = 0.5}, {0, 0, 1, 0});  // 16 of 30
  ExpectShares(weights, {.temperature = 1, .top_k = 3}, {2, 0, 4, 3});
  ExpectShares(weights, {.temperature = 1, .top_k = 4}, weights);
  ExpectShares(weights, {.temperature = 1, .top_k = 9}, weights);
  // Shares of top_p are of the tokens that top_k left: 4 of 7 and 3 of 7.
  ExpectShares(weights, {.temperature = 1, .top_p = 0.5, .top_k = 2}, {0, 0, 1, 0});
  // Of equally likely tokens, those with the lower ids are kept.
  ExpectShares({1, 1, 1, 1}, {.temperature = 1, .top_k = 2}, {1, 1, 0, 0});
  ExpectShares({1, 1, 1, 1}, {.temperature = 1, .top_p = 0.7}, {1, 1, 1, 0});
}

TEST(Sampler, NumbersThatMeanNothingAreRefused) {
  const auto error = [](const Sampling& s) { return ErrorOf([&] { CheckSampling(s); }); };
  for (const Sampling& s : std::vector<Sampling>{{}, {100, 1, 0}, {0.7, 1e-6, int64_t{1} << 32}}) {
    EXPECT_EQ(error(s), "");
  }
  for (const double bad : {-1.0, -1e-9, 100.5, double{NAN}, double{INFINITY}}) {
    EXPECT_THAT(error({.temperature = bad}), testing::HasSubstr("temperature"));
  }
  for (const double bad : {0.0, -5.0, 1.01, 7.0, double{NAN}, double{INFINITY}}) {
    EXPECT_THAT(error({.top_p = bad}), testing::HasSubstr("top-p"));
  }
  for (const int64_t bad : {int64_t{-1}, int64_t{-3}, (int64_t{1} << 32) + 1}) {
    EXPECT_THAT(error({.top_k = bad}), testing::HasSubstr("top-k"));
  }
  for (const double bad : {-0.1, 1.1, double{NAN}}) {
    EXPECT_THAT(error({.min_p = bad}), testing::HasSubstr("min-p"));
    EXPECT_THAT(error({.typical = bad}), testing::HasSubstr("typical-p"));
    EXPECT_THAT(error({.repetition = bad - 1.2}), testing::HasSubstr("repetition-penalty"));
    EXPECT_THAT(error({.presence = bad * 2000}), testing::HasSubstr("presence-penalty"));
    EXPECT_THAT(error({.frequency = bad * 2000}), testing::HasSubstr("frequency-penalty"));
  }
  const auto model = LoadModel(kTinyModel, "cpu", false);
  Session session(*model);
  EXPECT_THAT(
      ErrorOf([&] { Generate(session, std::vector<int32_t>{0}, {.sampling = {.top_p = NAN}}); }),
      testing::HasSubstr("top-p = nan is not in"));
}

TEST(WindowBos, OfGemmaAlone) {
  const Tokenizer tokenizer = Tokenizer::Load(kTinyModel);
  ModelConfig config;
  for (const char* family : {"gemma2", "gemma3_text", "gemma4_text"}) {
    config.family = family;
    EXPECT_EQ(WindowBos(tokenizer, config), 0) << family;
  }
  config.family = "llama";
  EXPECT_EQ(WindowBos(tokenizer, config), std::nullopt);
}

TEST(GenerationConfig, ReadsOneOrSeveralStopIdsAndFallsBackToTheConfig) {
  const fs::path dir = fs::path(testing::TempDir()) / "generation-config";
  fs::create_directories(dir);
  const Json model = {{"eos_token_id", 9}};
  fs::remove(dir / "generation_config.json");
  EXPECT_EQ(LoadGenerationConfig(dir.string(), model).stop_ids, std::vector<int32_t>{9});
  std::ofstream(dir / "generation_config.json")
      << R"({"eos_token_id": [3, 4], "do_sample": true, "temperature": 0.6, "top_k": 20,
           "top_p": 0.875})";
  const GenerationConfig config = LoadGenerationConfig(dir.string(), model);
  EXPECT_EQ(config.stop_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(config.sampling.temperature, 0.6);
  EXPECT_EQ(config.sampling.top_k, 20);
  EXPECT_EQ(config.sampling.top_p, 0.875);
}

class GenerationConfigFields : public TemporaryDirectoryTest {
 protected:
  GenerationConfig Load(const std::string& fields) {
    std::ofstream(Path("generation_config.json")) << "{" << fields << "}";
    return LoadGenerationConfig(root_.string(), {{"eos_token_id", 9}});
  }
};

TEST_F(GenerationConfigFields, AnswersAreSampledWhereTheFileSamplesNothing) {
  const Sampling own = Load(R"("do_sample": true, "temperature": 0.3)").ForAnswers();
  EXPECT_EQ(own.temperature, 0.3);
  EXPECT_EQ(own.top_p, 1);
  EXPECT_EQ(own.min_p, 0);
  const Sampling ours = Load(R"("temperature": 0.3, "repetition_penalty": 1.5)").ForAnswers();
  EXPECT_EQ(ours.temperature, 0.7);
  EXPECT_EQ(ours.top_p, 0.95);
  EXPECT_EQ(ours.min_p, 0.05);
  EXPECT_EQ(ours.repetition, 1.5);
}

TEST_F(GenerationConfigFields, DefaultsAreThoseOfTransformers) {
  const GenerationConfig sampling = Load(R"("do_sample": true)");
  EXPECT_EQ(sampling.sampling.temperature, 1);
  EXPECT_EQ(sampling.sampling.top_p, 1);
  EXPECT_EQ(sampling.sampling.top_k, 0);
  EXPECT_EQ(sampling.stop_ids, std::vector<int32_t>{9});  // those of config.json
  for (const char* greedy : {"", R"(, "do_sample": false)", R"(, "do_sample": null)"}) {
    const Sampling s =
        Load(std::string(R"("temperature": 0.5, "top_p": 0.5, "top_k": 5)") + greedy).sampling;
    EXPECT_EQ(s.temperature, 0) << greedy;
    EXPECT_EQ(s.top_p, 1);
    EXPECT_EQ(s.top_k, 0);
  }
  EXPECT_EQ(Load(R"("eos_token_id": 7)").stop_ids, std::vector<int32_t>{7});
  EXPECT_EQ(Load(R"("eos_token_id": [])").stop_ids, std::vector<int32_t>{9});
}

TEST_F(GenerationConfigFields, PenaltiesAndTypicalTokensAreTheFiles) {
  const std::string fields =
      R"("typical_p": 0.9, "presence_penalty": 1.5, "frequency_penalty": -1)";
  const Sampling own = Load(R"("do_sample": true, )" + fields).sampling;
  EXPECT_EQ(own.typical, 0.9);
  EXPECT_EQ(own.presence, 1.5);
  EXPECT_EQ(own.frequency, -1);
  const Sampling greedy = Load(fields).sampling;
  EXPECT_EQ(greedy.typical, 1);
  EXPECT_EQ(greedy.presence, 1.5);
}

TEST_F(GenerationConfigFields, ValuesOutOfRangeAreNamed) {
  for (const char* sample : {R"("do_sample": true, )", ""}) {
    for (const auto& [field, named] : std::map<std::string, std::string>{
             {R"("top_p": -5)", "top_p = -5 is not in 1e-06..1"},
             {R"("top_p": 7)", "top_p = 7 is not in 1e-06..1"},
             {R"("top_p": 0)", "top_p = 0 is not in"},
             {R"("top_p": NaN)", "not valid JSON"},
             {R"("top_p": "1")", "top_p must be a number"},
             {R"("temperature": -1)", "temperature = -1 is not in 0..100"},
             {R"("temperature": 1e308)", "temperature"},
             {R"("top_k": -3)", "top_k = -3 is not in 0..4294967296"},
             {R"("top_k": 1.5)", "top_k must be an integer"},
             {R"("typical_p": 0)", "typical_p = 0 is not in"},
             {R"("presence_penalty": 1000)", "presence_penalty = 1000 is not in -100..100"},
             {R"("eos_token_id": 1e300)", "eos_token_id must be an integer"}}) {
      EXPECT_THAT(ErrorOf([&, f = field] { Load(sample + f); }),
                  testing::AllOf(testing::HasSubstr(Path("generation_config.json")),
                                 testing::HasSubstr(named)));
    }
  }
}

}  // namespace
}  // namespace nibble
