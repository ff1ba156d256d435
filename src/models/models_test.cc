// SPDX-License-Identifier: Apache-2.0
// config.json of every family and style, and Hugging Face directories that open or must not.
#include <cstring>

#include "models/families/family.h"
#include "models/families/shapes.h"
#include "models/import/open_network.h"
#include "models/models_testing.h"
#include "models/network.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Json ConfigOf(const std::string& folder, const std::string& file = "config.json") {
  return ReadJsonFile((kArchitectures / folder / file).string());
}

// Every field, for comparisons and readable differences.
std::string Text(const ModelConfig& c) {
  const RopeSpec& r = c.ropes[0];
  return fmt::format(
      "{} hidden {} ffn {} layers {} heads {}/{} of {} vocab {} context {} window {} eps {} tied "
      "{} rope {} {} {} {} {} {} {}",
      c.family, c.hidden_size, c.intermediate_size, c.layers, c.heads, c.kv_heads, c.head_dim,
      c.vocab_size, c.context, c.spec(0).sliding_window, c.norm_eps, c.tied_head, r.theta,
      r.head_dim, r.type, r.factor, r.low_freq_factor, r.high_freq_factor, r.original_context);
}

TEST(Config, BothStylesGiveTheSameModel) {
  for (const char* folder : {"llama2", "llama3_gqa_ropescale_tied", "mistral_sliding"}) {
    EXPECT_EQ(Text(ParseConfig(ConfigOf(folder), "v5")),
              Text(ParseConfig(ConfigOf(folder, "config.v4.json"), "v4")));
  }
}

TEST(Config, ValuesAreThoseOfTheFile) {
  EXPECT_EQ(Text(ParseConfig(ConfigOf("llama3_gqa_ropescale_tied"), "c")),
            "llama hidden 64 ffn 224 layers 2 heads 4/2 of 16 vocab 512 context 256 window 0 "
            "eps 1e-05 tied true rope 500000 16 llama3 8 1 4 64");
  EXPECT_EQ(Text(ParseConfig(ConfigOf("mistral_sliding"), "c")),
            "mistral hidden 64 ffn 160 layers 2 heads 4/2 of 16 vocab 512 context 256 window 8 "
            "eps 1e-06 tied false rope 10000 16 default 1 1 4 8192");
}

TEST(Config, ShapesFollowFromTheRoles) {
  const ModelConfig c = ParseConfig(ConfigOf("llama3_gqa_ropescale_tied"), "c");
  EXPECT_EQ(c.outputs(0, Role::kQ), 64);
  EXPECT_EQ(c.outputs(0, Role::kK), 32);
  EXPECT_EQ(c.inputs(0, Role::kDown), 224);
  EXPECT_EQ(c.outputs(0, Role::kHead), 512);
  // q, o: 64 x 64; k, v: 32 x 64; gate, up, down: 224 x 64; two norms. Tied: one table.
  EXPECT_EQ(c.parameters(), 2 * (2 * 4096 + 2 * 2048 + 3 * 14336 + 128) + 64 + 512 * 64);
  EXPECT_EQ(LinearName(3, Role::kDown), "layers.3.down");
  EXPECT_EQ(LinearName(3, Role::kHead), "head");
}

Json MixtralConfig() {
  Json config = ConfigOf("mistral_sliding");
  config["model_type"] = "mixtral";
  config["num_local_experts"] = 4;
  config["num_experts_per_tok"] = 2;
  return config;
}

TEST(Config, KnownShapesAreFoundByTheirSizes) {
  ModelConfig config = FindShape("llama2-13b");
  EXPECT_EQ(ShapeNameOf(config), "llama2-13b");
  config.layers -= 1;
  EXPECT_EQ(ShapeNameOf(config), "");
}

TEST(Config, AMixtureHasARouterAndExperts) {
  const ModelConfig c = ParseConfig(MixtralConfig(), "c");
  EXPECT_EQ(c.router.experts, 4);
  EXPECT_EQ(c.router.experts_per_token, 2);
  EXPECT_EQ(c.spec(0).sliding_window, 8);
  const std::vector<Role> roles = c.layer_roles(0);
  ASSERT_EQ(roles.size(), 5u + 3 * 4);
  EXPECT_EQ(roles[4], Role::kRouter);
  const Role down = OfExpert(Role::kDown, 3);
  EXPECT_EQ(roles.back(), down);
  EXPECT_EQ(KindOf(down), Role::kDown);
  EXPECT_EQ(ExpertOf(down), 3);
  EXPECT_EQ(ExpertOf(Role::kRouter), -1);
  EXPECT_EQ(OfExpert(Role::kDown, -1), Role::kDown);
  EXPECT_EQ(LinearName(1, down), "layers.1.experts.3.down");
  EXPECT_EQ(LinearName(1, Role::kRouter), "layers.1.router");
  EXPECT_EQ(SourceName(c, 1, down), "model.layers.1.block_sparse_moe.experts.3.w2");
  EXPECT_EQ(SourceName(c, 1, OfExpert(Role::kGate, 0)),
            "model.layers.1.block_sparse_moe.experts.0.w1");
  EXPECT_EQ(SourceName(c, 1, OfExpert(Role::kUp, 0)),
            "model.layers.1.block_sparse_moe.experts.0.w3");
  EXPECT_EQ(SourceName(c, 0, Role::kRouter), "model.layers.0.block_sparse_moe.gate");
  EXPECT_EQ(SourceName(c, 0, Role::kO), "model.layers.0.self_attn.o_proj");
  EXPECT_EQ(c.outputs(0, Role::kRouter), 4);
  EXPECT_EQ(c.inputs(0, Role::kRouter), 64);
  EXPECT_EQ(c.inputs(0, down), 160);
  // q, o: 64 x 64; k, v: 32 x 64; a router; gate, up, down: 160 x 64 each; norms; two tables.
  EXPECT_EQ(c.parameters(),
            2 * (2 * 4096 + 2 * 2048 + 4 * 64 + 4 * 3 * 10240 + 128) + 64 + 2 * 512 * 64);
}

TEST(Config, AbsentAndNullFieldsHaveTheirDefaults) {
  for (const bool null : {false, true}) {
    Json config = ConfigOf("llama2", "config.v4.json");
    for (const char* key : {"num_key_value_heads", "head_dim", "rope_theta", "rope_scaling",
                            "rms_norm_eps", "tie_word_embeddings", "hidden_act"}) {
      config.erase(key);
      if (null) config[key] = nullptr;
    }
    const ModelConfig c = ParseConfig(config, "c");
    EXPECT_EQ(c.kv_heads, 4);
    EXPECT_EQ(c.head_dim, 16);
    EXPECT_EQ(c.ropes[0].theta, 10000);
    EXPECT_EQ(c.ropes[0].type, "default");
    EXPECT_EQ(c.norm_eps, 1e-6);
    EXPECT_FALSE(c.tied_head);
  }
  Json mistral = ConfigOf("mistral_sliding");
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(ParseConfig(mistral, "c").spec(0).sliding_window, 0);
  // Llama has no window, whatever the file says.
  Json llama = ConfigOf("llama2");
  llama["sliding_window"] = 8;
  EXPECT_EQ(ParseConfig(llama, "c").spec(0).sliding_window, 0);
}

TEST(Config, RopeTypeUnderItsOlderKey) {
  Json config = ConfigOf("llama2", "config.v4.json");
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  const ModelConfig c = ParseConfig(config, "c");
  EXPECT_EQ(c.ropes[0].type, "linear");
  EXPECT_EQ(c.ropes[0].factor, 2);
  config["rope_scaling"] = Json::object();
  EXPECT_EQ(ParseConfig(config, "c").ropes[0].type, "default");
  // The newer field counts alone where both are there.
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  config["rope_parameters"] = {{"rope_theta", 5000.0}};
  EXPECT_EQ(ParseConfig(config, "c").ropes[0].type, "default");
  EXPECT_EQ(ParseConfig(config, "c").ropes[0].theta, 5000);
}

void ExpectRefused(Json config, const std::string& pointer, const Json& value,
                   const std::string& named) {
  config[Json::json_pointer(pointer)] = value;
  EXPECT_THAT(ErrorOf([&] { ParseConfig(config, "dir/config.json"); }),
              AllOf(HasSubstr("dir/config.json"), HasSubstr(named)))
      << pointer << " = " << value;
}

TEST(Config, SizesAreRefused) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    for (const Json& value :
         {Json(-64), Json(0), Json(int64_t{1} << 40), Json(UINT64_MAX), Json(64.5), Json("64"),
          Json(true), Json::array(), Json::object(), Json()}) {
      ExpectRefused(ConfigOf("llama2"), "/" + std::string(key), value, key);
    }
  }
}

TEST(Config, CountsOfExpertsAreRefused) {
  for (const Json& value : {Json(), Json(0), Json(-1), Json(5000), Json("2"), Json(2.5)}) {
    ExpectRefused(MixtralConfig(), "/num_local_experts", value, "num_local_experts");
    ExpectRefused(MixtralConfig(), "/num_experts_per_tok", value, "num_experts_per_tok");
  }
  ExpectRefused(MixtralConfig(), "/num_experts_per_tok", 5,
                "num_experts_per_tok = 5 is not in 1..4");
}

TEST(Config, OtherFieldsAreRefused) {
  struct Case {
    const char* pointer;
    Json value;
    const char* named;
  };
  const Json llama2 = ConfigOf("llama2"),
             llama3 = ConfigOf("llama3_gqa_ropescale_tied", "config.v4.json");
  const Case cases[] = {
      {"/model_type", "gpt2", "\"gpt2\" is not supported; this build knows llama, mistral, "},
      {"/model_type", Json(), "model_type"},
      {"/model_type", 7, "model_type"},
      {"/hidden_act", "gelu", "hidden_act \"gelu\""},
      {"/num_key_value_heads", 3, "4 query heads cannot share 3 key heads"},
      {"/num_key_value_heads", 8, "8 key heads"},
      {"/num_key_value_heads", 0, "0 key heads"},
      {"/num_key_value_heads", -2, "-2 key heads"},
      {"/num_key_value_heads", "2", "num_key_value_heads"},
      {"/head_dim", 12, "head_dim = 12"},
      {"/head_dim", 0, "head_dim = 0"},
      {"/head_dim", -16, "head_dim = -16"},
      {"/head_dim", 520, "head_dim = 520"},
      {"/head_dim", 16.5, "head_dim"},
      {"/rms_norm_eps", -1e-5, "rms_norm_eps = -1e-05 is not in 1e-12..1"},
      {"/rms_norm_eps", 0, "rms_norm_eps = 0 is not in"},
      {"/rms_norm_eps", 1e-310, "rms_norm_eps"},
      {"/rms_norm_eps", 9e-13, "rms_norm_eps"},
      {"/rms_norm_eps", 1.1, "rms_norm_eps"},
      {"/rms_norm_eps", 1e308, "rms_norm_eps"},
      {"/rms_norm_eps", "1e-5", "rms_norm_eps"},
      {"/tie_word_embeddings", 1, "tie_word_embeddings"},
      {"/rope_theta", 0, "rope_theta = 0 is not in 1..1000000000000000"},
      {"/rope_theta", 0.9, "rope_theta"},
      {"/rope_theta", 1e-310, "rope_theta"},
      {"/rope_theta", 1.1e15, "rope_theta"},
      {"/rope_theta", 1e308, "rope_theta"},
      {"/rope_theta", -1.0, "rope_theta"},
      {"/rope_theta", "10000", "rope_theta"},
      {"/rope_scaling", 8, "rope parameters must be a JSON object"},
      {"/rope_scaling/rope_type", "magic", "rope_type \"magic\" is not supported"},
      {"/rope_scaling/rope_type", 3, "rope_type"},
      {"/rope_scaling/factor", 0.5, "rope parameters: factor = 0.5 is not in 1..1000000"},
      {"/rope_scaling/factor", 1e308, "factor"},
      {"/rope_scaling/factor", 1.1e6, "factor"},
      {"/rope_scaling/low_freq_factor", 1e-310, "low_freq_factor"},
      {"/rope_scaling/low_freq_factor", 3.999, "not above low_freq_factor = 3.999"},
      {"/rope_scaling/high_freq_factor", 1e308, "high_freq_factor"},
      {"/rope_scaling/original_max_position_embeddings", 1 << 25, "original_max_position"},
      {"/rope_scaling/factor", Json(), "factor"},
      {"/rope_scaling/low_freq_factor", 4.0, "low_freq_factor"},
      {"/rope_scaling/low_freq_factor", 0, "low_freq_factor"},
      {"/rope_scaling/high_freq_factor", "4", "high_freq_factor"},
      {"/rope_scaling/original_max_position_embeddings", 0, "original_max_position"},
  };
  for (const Case& c : cases) ExpectRefused(llama3, c.pointer, c.value, c.named);
  ExpectRefused(llama2, "/rope_parameters/rope_theta", -1, "rope_theta");
  ExpectRefused(llama2, "/rope_parameters/rope_type", "axial", "rope_type \"axial\"");
  ExpectRefused(ConfigOf("mistral_sliding"), "/sliding_window", -8, "sliding_window");
  ExpectRefused(ConfigOf("mistral_sliding"), "/sliding_window", "8", "sliding_window");
  ExpectRefused(ConfigOf("mistral_sliding"), "/sliding_window", INT64_MAX, "sliding_window");
  EXPECT_THAT(ErrorOf([] { ParseConfig(Json::array(), "dir/config.json"); }),
              HasSubstr("dir/config.json"));
}

// The context is the same where max_position_embeddings is the original one, as in Qwen's model
// cards, and where it is the longer one, as in other files.
TEST(Config, YarnReachesAsFarAsItsFactor) {
  const auto context = [](int64_t positions, const Json& scaling) {
    Json config = ConfigOf("llama2", "config.v4.json");
    config["max_position_embeddings"] = positions;
    config["rope_scaling"] = scaling;
    return ParseConfig(config, "c").context;
  };
  const auto yarn = [](double factor) -> Json {
    return {{"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", 1024}};
  };
  EXPECT_EQ(context(1024, yarn(4)), 4096);
  EXPECT_EQ(context(4096, yarn(4)), 4096);
  EXPECT_EQ(context(8192, yarn(4)), 8192);
  EXPECT_EQ(context(1024, yarn(1e5)), 1 << 24) << "the largest that is read";
  EXPECT_EQ(context(8192, {{"rope_type", "linear"}, {"factor", 4.0}}), 8192);
}

// A copy of a model whose files may be damaged.
class OpenNetworkTest : public TemporaryDirectoryTest {
 protected:
  struct Content {
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  using Tensors = std::map<std::string, Content>;

  void Copy(const std::string& folder) {
    fs::remove_all(root_ / "m");
    fs::copy(kArchitectures / folder, root_ / "m");
  }

  // Rewrites model.safetensors.
  void Edit(const std::function<void(Tensors&)>& edit) {
    Tensors tensors;
    {
      const SafetensorsFile file(Path("m/model.safetensors"));
      for (const auto& [name, view] : file.tensors()) {
        tensors[name] = {view.dtype, view.shape, {view.data, view.data + view.bytes()}};
      }
    }
    edit(tensors);
    std::vector<SafetensorsWriter::Entry> entries;
    for (const auto& [name, t] : tensors) entries.push_back({name, t.dtype, t.shape});
    SafetensorsWriter writer(Path("m/model.safetensors"), entries);
    for (const auto& [name, t] : tensors) writer.Append(t.bytes);
    writer.Finish();
  }

  void Set(const char* key, bool value) {
    EditJson(Path("m/config.json"), [&](Json& config) { config[key] = value; });
  }
  ModelConfig OpenConfig() const {
    return ParseConfig(ReadJsonFile(Path("m/config.json")), Path("m/config.json"));
  }
  // Adds biases of zeros to linears of every layer.
  void AddBiases(const std::vector<Role>& roles) {
    const ModelConfig config = OpenConfig();
    Edit([&](Tensors& t) {
      for (int64_t layer = 0; layer < config.layers; ++layer) {
        for (Role role : roles) {
          const int64_t rows = config.outputs(layer, role);
          t[SourceName(config, layer, role) + ".bias"] = {
              DType::kBf16, {rows}, std::vector<std::byte>(static_cast<size_t>(2 * rows))};
        }
      }
    });
  }

  std::string OpenError() const {
    return ErrorOf([&] { OpenNetwork(Path("m")); });
  }
};

TEST_F(OpenNetworkTest, ShardsAndSingleFiles) {
  Copy("llama2");
  const Network sharded = OpenNetwork(Path("m"));
  EXPECT_FALSE(sharded.packed);
  ASSERT_EQ(sharded.layers.size(), 2u);
  EXPECT_EQ(sharded.layers[1][Role::kDown].weights.values.shape, (std::vector<int64_t>{64, 172}));
  EXPECT_EQ(sharded.layers[1][Role::kDown].input.width, 172);
  EXPECT_NE(sharded.head.weights.values.data, sharded.embedding.values.data);
  EXPECT_NE(sharded.final_norm.data, nullptr);
  Copy("llama3_gqa_ropescale_tied");
  const Network tied = OpenNetwork(Path("m"));
  EXPECT_EQ(tied.head.weights.values.data, tied.embedding.values.data);
  EXPECT_EQ(tied.layers[0][Role::kK].weights.values.shape, (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(tied.caches[0].kv_heads, 2);
  EXPECT_FALSE(tied.caches[0].k.quantized());
}

TEST_F(OpenNetworkTest, TensorsThatMayBeThere) {
  Copy("llama3_gqa_ropescale_tied");
  Edit([](Tensors& t) {
    t["lm_head.weight"] = t["model.embed_tokens.weight"];  // a tied head stored twice
    t["model.layers.0.self_attn.rotary_emb.inv_freq"] = {DType::kF32, {1}, {4, std::byte{1}}};
  });
  EXPECT_EQ(OpenError(), "");
  EXPECT_TRUE(OpenNetwork(Path("m")).config.tied_head);
}

// A fine-tune of head and embedding apart; config.json was not told.
TEST_F(OpenNetworkTest, AHeadThatDiffersFromTheEmbeddingIsUsed) {
  Copy("llama3_gqa_ropescale_tied");
  Edit([](Tensors& t) {
    auto& head = t["lm_head.weight"] = t["model.embed_tokens.weight"];
    head.bytes.back() ^= std::byte{0x80};  // the sign of the last weight
  });
  const Network net = OpenNetwork(Path("m"));
  EXPECT_FALSE(net.config.tied_head);
  const PackedWeights &head = net.head.weights, &embedding = net.embedding;
  const auto bytes = static_cast<size_t>(head.values.bytes());
  EXPECT_EQ(head.values.data[bytes - 1] ^ embedding.values.data[bytes - 1], std::byte{0x80});
}

// In a Llama, attention_bias means q, k, v and o, mlp_bias gate, up and down. A Mistral has no
// biases, whatever its config.json says.
TEST_F(OpenNetworkTest, BiasesAreThoseOfTheConfig) {
  const std::vector<Role> attention = {Role::kQ, Role::kK, Role::kV, Role::kO};
  const std::vector<Role> mlp = {Role::kGate, Role::kUp, Role::kDown};
  for (const auto& [key, roles, others] :
       {std::tuple("attention_bias", attention, mlp), std::tuple("mlp_bias", mlp, attention)}) {
    Copy("llama3_gqa_ropescale_tied");
    Set(key, true);
    const std::string first = SourceName(OpenConfig(), 0, roles.front()) + ".bias";
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr(first)));
    AddBiases(roles);
    const Network net = OpenNetwork(Path("m"));
    for (const LayerWeights& layer : net.layers) {
      for (Role role : roles) {
        EXPECT_EQ(layer[role].bias.shape, std::vector<int64_t>{net.config.outputs(0, role)});
      }
      for (Role role : others) EXPECT_EQ(layer[role].bias.data, nullptr);
    }
    const std::string last = SourceName(net.config, 1, roles.back()) + ".bias";
    Edit([&](Tensors& t) { t[last].shape = {3}, t[last].bytes.resize(6); });
    EXPECT_THAT(OpenError(), HasSubstr(last + " has shape [3], expected ["));
    Edit([&](Tensors& t) { t.erase(last); });
    EXPECT_THAT(OpenError(), HasSubstr(last));
    Set(key, false);
    EXPECT_THAT(OpenError(), HasSubstr(".bias is not part of a llama model"));
    Copy("mistral_sliding");
    Set(key, true);
    EXPECT_EQ(OpenError(), "");
    AddBiases(roles);
    EXPECT_THAT(OpenError(), HasSubstr(".bias is not part of a mistral model"));
  }
}

TEST_F(OpenNetworkTest, DamagedTensors) {
  const std::string norm = "model.layers.1.input_layernorm.weight";
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  Copy("mistral_sliding");
  Edit([&](Tensors& t) { t[up].dtype = DType::kI16; });
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr(up + " is I16")));
  Copy("mistral_sliding");
  Edit([&](Tensors& t) { t[up].shape = {64, 160}; });
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(up), HasSubstr("[64, 160], expected [160, 64]")));
  Copy("mistral_sliding");
  Edit([&](Tensors& t) { t.erase(norm); });
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr("no tensor \"" + norm)));
  Copy("mistral_sliding");
  Edit([&](Tensors& t) { t["model.layers.0.self_attn.q_norm.weight"] = t[norm]; });
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("q_norm.weight"), HasSubstr("mistral model")));
}

// One value of a tensor; 0xFF7F is NaN, 0x7F80 infinity and 0x7F7F the largest number of bf16.
void SetBf16(std::vector<std::byte>& bytes, size_t i, uint16_t bits) {
  bytes[2 * i] = static_cast<std::byte>(bits & 0xFF);
  bytes[2 * i + 1] = static_cast<std::byte>(bits >> 8);
}

TEST_F(OpenNetworkTest, WhatIsNotFiniteIsRefusedByName) {
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "model.layers.1.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight", "model.layers.1.self_attn.k_proj.bias"}) {
    Copy("llama3_gqa_ropescale_tied");
    Set("attention_bias", true);
    AddBiases({Role::kQ, Role::kK, Role::kV, Role::kO});
    Edit([&](Tensors& t) {
      ASSERT_EQ(t[name].dtype, DType::kBf16);
      SetBf16(t[name].bytes, 7, 0x7F7F);
    });
    EXPECT_EQ(OpenError(), "") << name;
    Edit([&](Tensors& t) {
      SetBf16(t[name].bytes, t[name].bytes.size() / 2 - 1, 0xFF81);
      SetBf16(t[name].bytes, 0, 0x7F80);
    });
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr(std::string(name) + ": 2 of "),
                                   HasSubstr("values are NaN or infinite")));
  }
}

TEST_F(OpenNetworkTest, ATerminalIsSafeFromItsNames) {
  Copy("mistral_sliding");
  EditJson(Path("m/config.json"), [](Json& c) { c["model_type"] = "\x1b[2J\n"; });
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(R"(model_type "\x1b[2J\n" is not)"),
                                 Not(HasSubstr("\x1b")), Not(HasSubstr("\n"))));
}

TEST_F(OpenNetworkTest, ConfigThatDoesNotFitTheTensors) {
  for (const auto& [key, value, named] : {std::tuple{"intermediate_size", 168, "gate_proj.weight"},
                                          std::tuple{"num_hidden_layers", 3, "model.layers.2"},
                                          std::tuple{"num_hidden_layers", 1, "model.layers.1"},
                                          std::tuple{"num_key_value_heads", 4, "k_proj.weight"},
                                          std::tuple{"vocab_size", 500, "embed_tokens.weight"}}) {
    Copy("mistral_sliding");
    EditJson(Path("m/config.json"), [&, k = key, v = value](Json& c) { c[k] = v; });
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr(named))) << key;
  }
}

TEST_F(OpenNetworkTest, MissingOrForeignFiles) {
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr("no such model directory")));
  Copy("mistral_sliding");
  EditJson(Path("m/config.json"), [](Json& c) {
    c["quantization_config"] = {{"quant_method", "exl3"}, {"bits", 4}};
  });
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("m/config.json"), HasSubstr("\"exl3\" cannot be read")));
  WriteFileAtomic(Path("m/config.json"), "{\"model_type\": ");
  EXPECT_THAT(OpenError(), HasSubstr("m/config.json"));
  fs::remove(Path("m/config.json"));
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(Path("m")), HasSubstr("neither config.json")));
  Copy("mistral_sliding");
  fs::remove(Path("m/model.safetensors"));
  EXPECT_THAT(OpenError(), HasSubstr("model.safetensors"));
}

TEST_F(OpenNetworkTest, DamagedShards) {
  const std::string shard = "model-00003-of-00006.safetensors";
  const std::string index = "m/model.safetensors.index.json";
  Copy("llama2");
  fs::resize_file(Path("m/" + shard), fs::file_size(Path("m/" + shard)) - 1);
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(shard), HasSubstr("truncated")));
  Copy("llama2");
  fs::remove(Path("m/" + shard));
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(shard), HasSubstr("missing")));
  fs::create_symlink(kArchitectures / "llama2" / shard, Path("m/" + shard));
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(shard), HasSubstr("outside")));
  for (const std::string& outside : std::vector<std::string>{"../" + shard, "/etc/passwd", ".."}) {
    Copy("llama2");
    EditJson(Path(index), [&](Json& j) { j["weight_map"]["model.norm.weight"] = outside; });
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(outside), HasSubstr("not a plain file name")));
  }
  Copy("llama2");
  EditJson(Path(index), [&](Json& j) { j["weight_map"]["model.extra.weight"] = shard; });
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(shard), HasSubstr("no tensor \"model.extra.weight\"")));
}

}  // namespace
}  // namespace nibble
