// SPDX-License-Identifier: Apache-2.0
// Models and tokenizers as GGUF files, as converters write them.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "base/json.h"
#include "engine/engine_testing.h"
#include "formats/packed_weights_testing.h"
#include "io/gguf_testing.h"
#include "models/network.h"
#include "source/model_source.h"

namespace nibble {

inline constexpr uint32_t kF32 = 0, kBf16 = 30, kMxfp4 = 39;

// Rows of q and k in pairs: GGUF row 2i + j of a head is row i + j * head_dim / 2.
inline std::string InPairs(const Tensor& t, int64_t heads) {
  const size_t row = t.bytes() / static_cast<size_t>(t.shape[0]);
  const int64_t head_dim = t.shape[0] / heads;
  std::string out;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < head_dim / 2; ++i) {
      for (int64_t j = 0; j < 2; ++j) {
        const int64_t from = h * head_dim + i + j * head_dim / 2;
        out.append(reinterpret_cast<const char*>(t.data) + static_cast<size_t>(from) * row, row);
      }
    }
  }
  return out;
}

inline void AddTensor(GgufBuilder& b, const std::string& name, const Tensor& t,
                      int64_t paired_heads = 0) {
  const std::map<DType, uint32_t> types = {
      {DType::kF32, kF32}, {DType::kBf16, kBf16}, {DType::kMxfp4, kMxfp4}};
  const std::vector<uint64_t> shape(t.shape.begin(), t.shape.end());
  b.Tensor(name, shape, types.at(t.dtype),
           paired_heads > 0 ? InPairs(t, paired_heads) : BytesOf(t));
}

inline void AddKeys(GgufBuilder& b, const ModelConfig& c,
                    const std::string& architecture = "llama") {
  b.String("general.architecture", architecture);
  const std::pair<const char*, int64_t> numbers[] = {
      {"block_count", c.layers},           {"context_length", c.context},
      {"embedding_length", c.hidden_size}, {"feed_forward_length", c.intermediate_size},
      {"attention.head_count", c.heads},   {"attention.head_count_kv", c.kv_heads},
      {"attention.key_length", c.head_dim}};
  for (const auto& [name, value] : numbers) {
    b.Integer(architecture + "." + name, static_cast<uint32_t>(value));
  }
  b.Real(architecture + ".attention.layer_norm_rms_epsilon", static_cast<float>(c.norm_eps));
  b.Real(architecture + ".rope.freq_base", static_cast<float>(c.ropes[0].theta));
}

// The vocabulary of a tokenizer.json.
inline void AddTokenizer(GgufBuilder& b, const Json& json, const char* kind, const char* pre) {
  std::vector<std::string> tokens, merges;
  const auto place = [&](const std::string& token, size_t id) {
    if (tokens.size() <= id) tokens.resize(id + 1);
    tokens[id] = token;
  };
  for (const auto& [token, id] : json["model"]["vocab"].items()) place(token, id.get<size_t>());
  std::vector<int32_t> types;
  for (const Json& added : json["added_tokens"]) place(added["content"], added["id"].get<size_t>());
  types.assign(tokens.size(), 1);
  for (size_t id = 0; id < tokens.size(); ++id) {  // a tokenizer cut to a test has gaps
    if (tokens[id].empty()) tokens[id] = fmt::format("[unused{}]", id);
  }
  for (const Json& added : json["added_tokens"]) {
    types[added["id"].get<size_t>()] = added["special"].get<bool>() ? 3 : 4;
  }
  for (const Json& merge : json["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  b.String("tokenizer.ggml.model", kind);
  b.String("tokenizer.ggml.pre", pre);
  b.Strings("tokenizer.ggml.tokens", tokens);
  b.Numbers("tokenizer.ggml.token_type", 5, types);
  b.Strings("tokenizer.ggml.merges", merges);
}

inline void AddLayers(GgufBuilder& b, const Network& tiny, int64_t first, int64_t last) {
  const char* names[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                         "ffn_gate", "ffn_up", "ffn_down"};
  const ModelConfig& c = tiny.config;
  for (int64_t i = first; i < last; ++i) {
    const LayerWeights& layer = tiny.layers[static_cast<size_t>(i)];
    const std::string at = fmt::format("blk.{}.", i);
    AddTensor(b, at + "attn_norm.weight", layer.vectors[LayerVector::kAttentionNorm]);
    AddTensor(b, at + "ffn_norm.weight", layer.vectors[LayerVector::kMlpNorm]);
    for (const Role role : kLayerRoles) {
      const int64_t heads = role == Role::kQ ? c.heads : role == Role::kK ? c.kv_heads : 0;
      AddTensor(b, at + names[static_cast<size_t>(role)] + ".weight", layer[role].weights.values,
                heads);
    }
  }
}

// samples/tiny without the layers from `last` on.
inline GgufBuilder TinyGguf(const Network& tiny, int64_t last = 6) {
  GgufBuilder b;
  AddKeys(b, tiny.config);
  const Json json = ParseJson(GetDocument(kTinyModel, "tokenizer.json"), kTinyModel);
  AddTokenizer(b, json, "gpt2", "smaug-bpe");
  b.Bool("tokenizer.ggml.add_bos_token", true);
  b.Integer("tokenizer.ggml.bos_token_id", 0);
  b.Integer("tokenizer.ggml.eos_token_id", 1);
  b.String("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}");
  AddTensor(b, "token_embd.weight", tiny.embedding.values);
  AddTensor(b, "output.weight", tiny.head.weights.values);
  AddTensor(b, "output_norm.weight", tiny.final_norm);
  AddLayers(b, tiny, 0, last);
  return b;
}

}  // namespace nibble
