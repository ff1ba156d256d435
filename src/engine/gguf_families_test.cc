// SPDX-License-Identifier: Apache-2.0
// Random models of every family that has a GGUF architecture, as converters write them: the same
// logits, bit for bit.
#include "engine/gguf_model_testing.h"
#include "io/io_testing.h"
#include "models/import/open_network.h"
#include "models/random_model_testing.h"

namespace nibble {
namespace {

struct GgufFamily {
  const char* architecture;
  Json changes;  // of SmallConfig
};

const Json kPhiRope = {{"rope_type", "longrope"},
                       {"rope_theta", 1e4},
                       {"partial_rotary_factor", 0.75},
                       {"original_max_position_embeddings", 64},
                       {"short_factor", {1.0, 1.1, 1.2, 1.3, 1.4, 1.5}},
                       {"long_factor", {1.0, 1.5, 2.0, 2.5, 3.0, 4.5}}};

const GgufFamily kGgufModels[] = {
    {"llama", {{"model_type", "mixtral"}, {"num_local_experts", 3}, {"num_experts_per_tok", 2}}},
    {"smollm3", {{"model_type", "smollm3"}, {"num_hidden_layers", 5}}},
    {"granite",
     {{"model_type", "granite"},
      {"embedding_multiplier", 12.0},
      {"residual_multiplier", 0.25},
      {"attention_multiplier", 0.125},
      {"logits_scaling", 8.0}}},
    {"olmo2", {{"model_type", "olmo2"}, {"tie_word_embeddings", false}}},
    {"qwen2", {{"model_type", "qwen2"}, {"tie_word_embeddings", false}}},
    {"qwen3", {{"model_type", "qwen3"}, {"head_dim", 32}}},
    {"qwen3moe",
     {{"model_type", "qwen3_moe"},
      {"num_experts", 4},
      {"num_experts_per_tok", 2},
      {"moe_intermediate_size", 40},
      {"norm_topk_prob", true}}},
    {"phi3", {{"model_type", "phi3"}, {"rope_parameters", kPhiRope}}},
    {"gpt-oss",
     {{"model_type", "gpt_oss"},
      {"head_dim", 24},
      {"num_local_experts", 3},
      {"num_experts_per_tok", 2},
      {"sliding_window", 5},
      {"tie_word_embeddings", false}}},
    {"gemma2",
     {{"model_type", "gemma2"},
      {"head_dim", 24},
      {"query_pre_attn_scalar", 24},
      {"sliding_window", 5},
      {"attn_logit_softcapping", 2.0},
      {"final_logit_softcapping", 5.0}}},
    {"gemma3",
     {{"model_type", "gemma3_text"},
      {"num_hidden_layers", 7},
      {"head_dim", 24},
      {"query_pre_attn_scalar", 24},
      {"sliding_window", 5},
      {"rope_theta", 1e6},
      {"rope_local_base_freq", 1e4}}},
};

// Linears of a layer under the names and in the shapes of its architecture.
class Converter {
 public:
  Converter(const Network& net, const std::string& architecture, const Json& changes)
      : net_(net), architecture_(architecture) {
    const ModelConfig& c = net.config;
    ModelConfig keys = c;
    keys.norm_eps = SmallConfig(changes)["rms_norm_eps"];  // which multipliers change in c
    AddKeys(builder_, keys, architecture);
    for (const auto& [multiplier, scale] : {std::pair("embedding_multiplier", "embedding_scale"),
                                            {"residual_multiplier", "residual_scale"},
                                            {"attention_multiplier", "attention.scale"},
                                            {"logits_scaling", "logit_scale"}}) {
      if (changes.contains(multiplier)) {
        builder_.Real(architecture + "." + scale, changes[multiplier].get<float>());
      }
    }
    const auto integer = [&](const char* name, int64_t value) {
      builder_.Integer(architecture + "." + name, static_cast<uint32_t>(value));
    };
    if (c.router.experts > 0) {
      integer("expert_count", c.router.experts);
      integer("expert_used_count", c.router.experts_per_token);
      integer("expert_feed_forward_length", c.expert_size);
    }
    if (const RopeSpec& rope = c.ropes[0]; rope.type == "longrope") {
      integer("rope.dimension_count", rope.head_dim);
      integer("rope.scaling.original_context_length", rope.original_context);
      for (const char* name : {"long", "short"}) {
        const auto factors = kPhiRope[fmt::format("{}_factor", name)].get<std::vector<float>>();
        AddTensor(builder_, fmt::format("rope_factors_{}.weight", name),
                  Tensor::Of(DType::kF32, {static_cast<int64_t>(factors.size())}, factors));
      }
    }
    for (const auto& [name, cap] : {std::pair("attn_logit_softcapping", c.attention_softcap),
                                    {"final_logit_softcapping", c.logits_softcap}}) {
      if (cap > 0) builder_.Real(architecture + "." + name, static_cast<float>(cap));
    }
    if (const int64_t window = c.spec(0).sliding_window; window > 0) {
      integer("attention.sliding_window", window);
    }
    AddTensor(builder_, "token_embd.weight", net.embedding.values);
    if (!c.tied_head) AddTensor(builder_, "output.weight", net.head.weights.values);
    // An open network has divided this norm already.
    std::vector<float> final_norm = ToF32(net.final_norm).data;
    for (float& x : final_norm) x *= static_cast<float>(c.logits_divisor);
    AddTensor(builder_, "output_norm.weight",
              Tensor::Of(DType::kF32, net.final_norm.shape, final_norm));
    for (int64_t layer = 0; layer < c.layers; ++layer) AddLayer(layer);
  }
  void Write(const std::string& path) const { builder_.Write(path); }

 private:
  void AddLayer(int64_t index) {
    constexpr const char* kVectors[] = {
        "attn_norm",           "ffn_norm",      "attn_q_norm", "attn_k_norm",
        "post_attention_norm", "post_ffw_norm", "attn_sinks"};
    const ModelConfig& c = net_.config;
    const LayerWeights& layer = net_.layers[static_cast<size_t>(index)];
    const std::string at = fmt::format("blk.{}.", index);
    for (const auto& [vector, values] : layer.vectors) {
      std::string name = kVectors[static_cast<size_t>(vector)];
      if (architecture_ == "gpt-oss" && name == "ffn_norm") name = "post_attention_norm";
      AddTensor(builder_, at + name + ".weight", values);
    }
    const bool fused = architecture_ == "phi3";
    if (fused) {
      Join(at + "attn_qkv", layer, {Role::kQ, Role::kK, Role::kV}, false);
      Join(at + "ffn_up", layer, {Role::kGate, Role::kUp}, false);
    }
    const std::pair<Role, const char*> names[] = {
        {Role::kQ, "attn_q"},      {Role::kK, "attn_k"},           {Role::kV, "attn_v"},
        {Role::kO, "attn_output"}, {Role::kGate, "ffn_gate"},      {Role::kUp, "ffn_up"},
        {Role::kDown, "ffn_down"}, {Role::kRouter, "ffn_gate_inp"}};
    for (const auto& [role, name] : names) {
      const bool experts = c.router.experts > 0 && role >= Role::kGate && role <= Role::kDown;
      if (experts) {
        std::vector<Role> roles;
        for (int64_t e = 0; e < c.router.experts; ++e) roles.push_back(OfExpert(role, e));
        Join(at + name + "_exps", layer, roles, true);
      }
      if (layer[role].weights.rows == 0 || (fused && role != Role::kO && role != Role::kDown)) {
        continue;
      }
      const bool in_pairs =
          architecture_ == "llama" || architecture_ == "smollm3" || architecture_ == "granite";
      const bool pairs = in_pairs && (role == Role::kQ || role == Role::kK);
      AddTensor(builder_, at + name + ".weight", layer[role].weights.values,
                pairs ? c.outputs(0, role) / c.head_dim : 0);
      if (c.has_bias(role)) AddTensor(builder_, at + name + ".bias", layer[role].bias);
    }
  }

  void Join(const std::string& name, const LayerWeights& layer, const std::vector<Role>& roles,
            bool stacked) {
    std::string bytes;
    int64_t rows = 0;
    for (const Role role : roles) {
      bytes += BytesOf(layer[role].weights.values);
      rows += layer[role].weights.rows;
    }
    const auto count = roles.size(), cols = static_cast<size_t>(layer[roles[0]].weights.cols);
    std::vector<uint64_t> shape = {static_cast<size_t>(rows), cols};
    if (stacked) shape = {count, static_cast<size_t>(rows) / count, cols};
    builder_.Tensor(name + ".weight", shape, kBf16, bytes);
    if (layer[roles[0]].bias.data == nullptr) return;
    bytes.clear();
    for (const Role role : roles) bytes += BytesOf(layer[role].bias);
    builder_.Tensor(name + ".bias", {count, static_cast<size_t>(rows) / count}, kF32, bytes);
  }

  const Network& net_;
  const std::string architecture_;
  GgufBuilder builder_;
};

class GgufFamilies : public TemporaryDirectoryTest,
                     public testing::WithParamInterface<GgufFamily> {};

TEST_P(GgufFamilies, GiveTheLogitsOfTheirCheckpoints) {
  const std::string architecture = GetParam().architecture;
  const std::string directory =
      RandomModel("gguf-" + architecture, SmallConfig(GetParam().changes));
  Converter(OpenNetwork(directory), architecture, GetParam().changes).Write(Path("model.gguf"));
  std::vector<int32_t> ids;
  Rng rng(5);
  for (int i = 0; i < 24; ++i) ids.push_back(static_cast<int32_t>(rng.Below(64)));
  EXPECT_EQ(AllLogits(*LoadModel(Path("model.gguf"), "cpu", false), ids),
            AllLogits(*LoadModel(directory, "cpu", false), ids));
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamilies, testing::ValuesIn(kGgufModels), [](const auto& param) {
  std::string name = param.param.architecture;
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace nibble
