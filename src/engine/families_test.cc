// SPDX-License-Identifier: Apache-2.0
// Every family: logits and greedy tokens of Hugging Face transformers, and random models of odd
// shapes against their meaning in fp64.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/half.h"
#include "compute/gpu_testing.h"
#include "engine/engine_testing.h"
#include "engine/hf_forward_testing.h"
#include "engine/layer_norm_forward_testing.h"
#include "engine/session.h"
#include "models/families/family.h"
#include "models/import/open_network.h"
#include "models/random_model_testing.h"
#include "tests/shared_data.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// A copy of the folder whose config.json is `config`.
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

struct Golden {
  const char* folder;
  double tolerance;  // largest logit difference, from the bound stated with the goldens
  const char* config = "config.json";
  bool decoded = false;  // codes as floats: by themselves they multiply inputs of 16 bits
};

class Architecture : public testing::TestWithParam<Golden> {
 protected:
  static void Expect(const std::string& directory, const Golden& golden) {
    const auto model = LoadModel(directory, "cpu", golden.decoded);
    const SafetensorsFile file(directory + "/golden.safetensors");
    const auto ids = file.tensors().at("input_ids").Copy<int32_t>();
    const auto logits = file.tensors().at("logits").Copy<float>();
    for (size_t row = 0; row < 2; ++row) {
      const std::vector<float> ours = AllLogits(*model, std::span(ids).subspan(row * 40, 40));
      EXPECT_LE(LargestDifference(ours, std::span(logits).subspan(row * 40 * 512, 40 * 512)),
                golden.tolerance);
    }
    const auto greedy = file.tensors().at("greedy").Copy<int32_t>();
    Session session(*model);
    const Generation g = Generate(session, std::span(greedy).first(12), {.max_tokens = 16});
    EXPECT_EQ(g.ids, std::vector<int32_t>(greedy.begin() + 12, greedy.end()));
  }
};

TEST_P(Architecture, LogitsAndGreedyTokensMatchTransformers) {
  const Golden& golden = GetParam();
  const std::string folder = std::string("data/architectures/") + golden.folder;
  NIBBLE_SKIP_WITHOUT_DATA(folder);
  Expect(WithConfig(test::DataPath(folder), golden.config), golden);
}

// Logits of size 1.5 have the smaller bound, those of tied heads (9) the larger.
INSTANTIATE_TEST_SUITE_P(
    All, Architecture,
    testing::Values(Golden{"llama2", 3e-5}, Golden{"llama2", 3e-5, "config.v4.json"},
                    Golden{"llama3_gqa_ropescale_tied", 1e-4},
                    Golden{"llama3_gqa_ropescale_tied", 1e-4, "config.v4.json"},
                    Golden{"mistral_sliding", 3e-5},
                    Golden{"mistral_sliding", 3e-5, "config.v4.json"},
                    Golden{"ministral_pattern", 3e-5}, Golden{"qwen2_bias", 3e-5},
                    Golden{"qwen2_bias", 3e-5, "config.v4.json"}, Golden{"qwen3_qknorm", 3e-5},
                    Golden{"qwen3_qknorm", 3e-5, "config.v4.json"}, Golden{"qwen3_moe", 3e-5},
                    Golden{"glm4_moe", 3e-5}, Golden{"olmo2_postnorm", 3e-5},
                    Golden{"qwen3_moe", 3e-5, "config.v4.json"}, Golden{"smollm3_nope", 1e-4},
                    Golden{"phi3_fused", 3e-5}, Golden{"phi3_fused", 3e-5, "config.v4.json"},
                    Golden{"granite_multipliers", 3e-5}, Golden{"gemma2_softcap", 1e-4},
                    Golden{"gemma3_text", 1e-4}, Golden{"gemma4_text", 1e-4},
                    Golden{"gemma4_shared", 1e-4}, Golden{"glm4_dense", 3e-5},
                    Golden{"exaone4_windows", 3e-5}, Golden{"ministral3_yarn", 3e-5},
                    Golden{"gpt_oss", 3e-5}, Golden{"gpt_oss_mxfp4", 3e-5, "config.json", true},
                    Golden{"gpt_neox_pythia", 3e-5},
                    Golden{"gpt_neox_pythia", 3e-5, "config.v4.json"}, Golden{"falcon_new", 1e-4},
                    Golden{"falcon_new", 1e-4, "config.v4.json"}, Golden{"opt", 1e-4},
                    Golden{"opt", 1e-4, "config.v4.json"}, Golden{"gemma4_moe", 1e-4}),
    [](const auto& param) {
      const bool older = std::string(param.param.config) == "config.v4.json";
      return std::string(param.param.folder) + (older ? "_v4" : "");
    });

// The golden's 40 tokens lie within the original context, for which transformers takes the short
// list; Nibble decides once by max_position_embeddings (models/families/rope_config.h).
TEST_F(Architecture, LongropeOfShortContextsMatchesTransformers) {
  NIBBLE_SKIP_WITHOUT_DATA("data/architectures/phi4_mini_partial_longrope");
  const std::string folder =
      WithConfig(test::DataPath("data/architectures/phi4_mini_partial_longrope"), "config.json");
  Json config = ReadJsonFile(folder + "/config.json");
  config["rope_parameters"]["factor"] = config["max_position_embeddings"].get<double>() /
                                        config["original_max_position_embeddings"].get<double>();
  config["max_position_embeddings"] = config["original_max_position_embeddings"];
  std::ofstream(folder + "/config.json") << config.dump();
  Expect(folder, {"", 1e-4});
}

std::vector<std::vector<double>> ExactLogits(const std::string& directory,
                                             const std::vector<int32_t>& ids) {
  const bool centred = FamilyOf(ReadJsonFile(directory + "/config.json"), directory).layer_norms;
  return centred ? LayerNormForward(directory).Logits(ids) : HfForward(directory).Logits(ids);
}

class RandomFamily : public testing::TestWithParam<FamilyModel> {};

TEST_P(RandomFamily, LogitsAreThoseOfFp64) {
  const std::string directory =
      RandomModel("family-" + std::string(GetParam().name), SmallConfig(GetParam().changes));
  std::vector<int32_t> ids;
  Rng rng(5);
  for (int i = 0; i < 24; ++i) ids.push_back(static_cast<int32_t>(rng.Below(64)));
  const auto expected = ExactLogits(directory, ids);
  double largest = 0;
  for (const auto& row : expected) {
    for (const double v : row) largest = std::max(largest, std::fabs(v));
  }
  for (const bool decoded : {false, true}) {
    const std::vector<float> found = AllLogits(*LoadModel(directory, "cpu", decoded), ids);
    // fp32: a few hundred roundings of eps = 6e-8 each.
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_NEAR(found[i], expected[i / 64][i % 64], 2e-5 * largest) << i;
    }
  }
}

// bf16 intermediates lose up to 2^-9 of q, k, v, gate and up in each layer, and of gate and up of
// experts beside an FFN; what q and k lose moves scores of several units by as much of themselves,
// which counts as much again.
TEST_P(RandomFamily, AGpuAgreesWithFp64) {
  std::unique_ptr<Backend> backend = GpuOrNull();
  if (!backend) GTEST_SKIP() << "needs a GPU";
  const std::string directory =
      RandomModel("gpu-family-" + std::string(GetParam().name), SmallConfig(GetParam().changes));
  std::vector<int32_t> ids;
  Rng rng(5);
  for (int i = 0; i < 24; ++i) ids.push_back(static_cast<int32_t>(rng.Below(64)));
  const auto expected = ExactLogits(directory, ids);
  Model model(OpenNetwork(directory), std::move(backend));
  const int roundings = model.config().dense_beside_experts ? 7 : 5;
  const auto all = static_cast<double>(roundings * model.config().layers);
  for (const size_t chunk : {ids.size(), size_t{1}}) {
    KvCache cache = model.MakeCache();
    double squares = 0, errors = 0;
    for (size_t first = 0; first < ids.size(); first += chunk) {
      const Model::Sequence sequence = {std::span(ids).subspan(first, chunk), &cache};
      const float* logits =
          model.Logits(model.Forward({&sequence, 1}), static_cast<int64_t>(chunk));
      for (size_t i = 0; i < chunk * 64; ++i) {
        const double exact = expected[first + i / 64][i % 64];
        squares += exact * exact;
        errors += std::pow(exact - logits[i], 2);
      }
    }
    EXPECT_LT(std::sqrt(errors / squares), 2 * std::sqrt(all) * 0x1p-9) << chunk;
  }
}

// A copy of the folder with this config.json and without the head, whose tensors' names lack a
// prefix.
std::string WithoutHead(const std::string& directory, const Json& config,
                        const std::string& prefix) {
  const ModelConfig c = ParseConfig(config, "test");
  const std::string head = SourceName(c, 0, Role::kHead) + ".weight";
  const fs::path copy = directory + (prefix.empty() ? "-headless" : "-base");
  fs::create_directories(copy);
  std::ofstream(copy / "config.json") << config.dump();
  const SafetensorsFile file(directory + "/model.safetensors");
  std::vector<SafetensorsWriter::Entry> entries;
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name == head) continue;
    EXPECT_TRUE(name.starts_with(prefix)) << name;
    entries.push_back({name.substr(prefix.size()), tensor.dtype, tensor.shape});
    tensors.push_back(tensor);
  }
  SafetensorsWriter writer((copy / "model.safetensors").string(), entries);
  for (const Tensor& tensor : tensors) writer.Append({tensor.data, tensor.bytes()});
  writer.Finish();
  return copy.string();
}

// Embedding models are saved like this. What the config says of a missing head does not matter.
TEST_P(RandomFamily, WhatTheBaseClassSavesIsTheModelWithATiedHead) {
  Json config = SmallConfig(GetParam().changes);
  config["tie_word_embeddings"] = true;
  const std::string whole = RandomModel("whole-" + std::string(GetParam().name), config);
  const std::string embedding = SourceName(ParseConfig(config, "test"), 0, Role::kEmbedding);
  const std::string prefix = embedding.substr(0, embedding.find('.') + 1);
  const std::vector<int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  const auto logits = [&](const std::string& directory) {
    return AllLogits(*LoadModel(directory, "cpu", false), ids);
  };
  const std::vector<float> expected = logits(WithoutHead(whole, config, ""));
  for (const bool tied : {true, false}) {
    config["tie_word_embeddings"] = tied;
    EXPECT_EQ(logits(WithoutHead(whole, config, prefix)), expected);
  }
  EXPECT_THROW(OpenNetwork(WithoutHead(whole, config, "")), Error) << "of the whole, it is damage";
}

// Experts in MXFP4: the bytes of their codes and their exponents, a tensor each, as in OpenAI's
// checkpoints.
struct Mxfp4Tensor {
  std::vector<uint8_t> blocks, exponents;
  std::vector<uint16_t> values;  // bf16 [experts, inputs, outputs], as in a checkpoint of floats
};

Mxfp4Tensor RandomMxfp4(Rng& rng, int64_t experts, int64_t outputs, int64_t inputs) {
  constexpr float kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  Mxfp4Tensor t;
  t.values.resize(static_cast<size_t>(experts * inputs * outputs));
  for (int64_t row = 0; row < experts * outputs; ++row) {
    for (int64_t k = 0; k < inputs; ++k) {
      if (k % 32 == 0) t.exponents.push_back(static_cast<uint8_t>(122 + rng.Below(4)));
      const auto code = static_cast<uint8_t>(rng.Below(16));
      if (k % 2 == 0) t.blocks.push_back(code);
      if (k % 2 == 1) t.blocks.back() = static_cast<uint8_t>(t.blocks.back() | code << 4);
      const float value =
          std::ldexp((code < 8 ? 1.0f : -1.0f) * kValues[code % 8], t.exponents.back() - 127);
      const int64_t at = (row / outputs * inputs + k) * outputs + row % outputs;
      t.values[static_cast<size_t>(at)] = Bf16FromF32(value);
    }
  }
  return t;
}

// Experts' weights in the published form and as floats are one model.
TEST(GptOss, ExpertsInMxfp4AreReadAsTheirValues) {
  const std::vector<FamilyModel> families = FamilyModels();
  const auto family = std::ranges::find(families, std::string_view("gpt_oss"), &FamilyModel::name);
  Json config = SmallConfig(family->changes);
  const std::string random = RandomModel("gpt-oss-random", config);
  const SafetensorsFile file(random + "/model.safetensors");
  std::map<std::string, Mxfp4Tensor> experts;
  Rng rng(8);
  for (const auto& [name, tensor] : file.tensors()) {
    if (!name.ends_with("_proj")) continue;
    experts[name] = RandomMxfp4(rng, tensor.shape[0], tensor.shape[2], tensor.shape[1]);
  }
  const auto write = [&](const std::string& directory, bool floats) {
    const fs::path folder = fs::path(testing::TempDir()) / directory;
    fs::create_directories(folder);
    Json json = config;
    if (!floats) json["quantization_config"] = {{"quant_method", "mxfp4"}};
    std::ofstream(folder / "config.json") << json.dump();
    std::vector<SafetensorsWriter::Entry> entries;
    for (const auto& [name, tensor] : file.tensors()) {
      if (floats || !experts.contains(name)) {
        entries.push_back({name, tensor.dtype, tensor.shape});
        continue;
      }
      const int64_t e = tensor.shape[0], inputs = tensor.shape[1], outputs = tensor.shape[2];
      entries.push_back({name + "_blocks", DType::kU8, {e, outputs, inputs / 32, 16}});
      entries.push_back({name + "_scales", DType::kU8, {e, outputs, inputs / 32}});
    }
    SafetensorsWriter writer((folder / "model.safetensors").string(), entries);
    for (const auto& [name, tensor] : file.tensors()) {
      const auto expert = experts.find(name);
      if (expert == experts.end()) {
        writer.Append({tensor.data, tensor.bytes()});
      } else if (floats) {
        writer.Append(std::as_bytes(std::span(expert->second.values)));
      } else {
        writer.Append(std::as_bytes(std::span(expert->second.blocks)));
        writer.Append(std::as_bytes(std::span(expert->second.exponents)));
      }
    }
    writer.Finish();
    return folder.string();
  };
  const std::vector<int32_t> ids = {3, 60, 0, 17, 17, 42};
  const auto logits = [&](const std::string& directory) {
    return AllLogits(*LoadModel(directory, "cpu", true), ids);
  };
  const std::string published = write("gpt-oss-mxfp4", false);
  EXPECT_EQ(logits(published), logits(write("gpt-oss-floats", true)));
  // The codes stay as small in memory.
  const Network source = OpenNetwork(published);
  EXPECT_EQ(source.stored_codes, "MXFP4");
  const PackedWeights& up = source.layers[0][OfExpert(Role::kUp, 1)].weights;
  EXPECT_EQ(FormatText(up.format), "4 g32 e2m1");
  EXPECT_EQ(up.bytes(), static_cast<size_t>(up.rows * up.cols / 32 * 18));
}

// The text model is read out of a larger one, which also sees.
void ExpectToBeReadOutOfALargerOne(std::string_view family) {
  const std::vector<FamilyModel> families = FamilyModels();
  const auto gemma = std::ranges::find(families, family, &FamilyModel::name);
  const Json config = SmallConfig(gemma->changes);
  const std::string alone = RandomModel("text-alone", config);
  std::vector<int32_t> ids = {3, 60, 0, 17, 17, 42};
  const std::vector<float> expected = AllLogits(*LoadModel(alone, "cpu", false), ids);
  const SafetensorsFile file(alone + "/model.safetensors");
  for (const std::string prefix :
       {"language_model.model.", "model.language_model.", "language_model."}) {
    const fs::path larger = fs::path(testing::TempDir()) / "text-in-larger";
    fs::remove_all(larger);
    fs::create_directories(larger);
    const Json outer = {{"model_type", "gemma"}, {"text_config", config}, {"vision_config", {}}};
    std::ofstream(larger / "config.json") << outer.dump();
    std::vector<SafetensorsWriter::Entry> entries = {{"vision_tower.x", DType::kBf16, {1, 2}}};
    for (const auto& [name, tensor] : file.tensors()) {
      entries.push_back({prefix + name.substr(6), tensor.dtype, tensor.shape});  // "model."
    }
    SafetensorsWriter writer((larger / "model.safetensors").string(), entries);
    writer.Append(std::as_bytes(std::span("abc")));
    for (const auto& [name, tensor] : file.tensors()) writer.Append({tensor.data, tensor.bytes()});
    writer.Finish();
    EXPECT_EQ(AllLogits(*LoadModel(larger.string(), "cpu", false), ids), expected) << prefix;
  }
}

TEST(TextModel, IsReadOutOfALargerOne) {
  for (const char* family : {"gemma3", "gemma4_experts"}) ExpectToBeReadOutOfALargerOne(family);
}

INSTANTIATE_TEST_SUITE_P(All, RandomFamily, testing::ValuesIn(FamilyModels()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace nibble
