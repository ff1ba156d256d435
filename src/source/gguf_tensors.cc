// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <filesystem>
#include <utility>

#include "source/gguf_source.h"

namespace nibble {
namespace {

constexpr int64_t kMaxSplits = 1 << 10;
constexpr const char* kRopeFactors = "rope_freqs.weight";  // config.json has them

constexpr std::pair<std::string_view, std::string_view> kGlobalNames[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};
// Of a layer.
constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"attn_norm", "input_layernorm"}, {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},   {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},   {"attn_output", "self_attn.o_proj"},
    {"ffn_gate", "mlp.gate_proj"},    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

// "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight".
std::string SourceName(const std::string& name, const std::string& path) {
  const size_t dot = name.rfind('.');
  const std::string stem = name.substr(0, dot);
  const std::string ending = dot == name.npos ? "" : name.substr(dot);
  for (const auto& [from, to] : kGlobalNames) {
    if (stem == from) return std::string(to) + ending;
  }
  const size_t layer = stem.find('.') + 1, part = stem.find('.', layer);
  if (stem.starts_with("blk.") && part != stem.npos) {
    for (const auto& [from, to] : kLayerNames) {
      if (stem.substr(part + 1) != from) continue;
      return fmt::format("model.layers.{}.{}{}", stem.substr(layer, part - layer), to, ending);
    }
  }
  Fail("{}: tensor {} is not part of a llama model that this build reads", path, name);
}

// Converters put the two rows that RoPE turns together side by side: row 2i + j of a head is row
// i + j * head_dim / 2 of Hugging Face's.
Tensor PairsApart(const Tensor& tensor, int64_t heads, const std::string& what) {
  const int64_t rows = tensor.shape[0];
  if (heads < 1 || rows % (2 * heads) != 0) Fail("{}: {} rows of {} heads", what, rows, heads);
  const int64_t half = rows / heads / 2;
  const size_t row_bytes = tensor.bytes() / static_cast<size_t>(rows);
  std::vector<std::byte> turned(tensor.bytes());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / (2 * half), at = row % (2 * half);
    const int64_t from = head * 2 * half + at % half * 2 + at / half;
    std::memcpy(turned.data() + static_cast<size_t>(row) * row_bytes,
                tensor.data + static_cast<size_t>(from) * row_bytes, row_bytes);
  }
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(turned));
  return {tensor.dtype, tensor.shape, owner->data(), owner};
}

}  // namespace

std::vector<GgufFile> OpenGgufFiles(const std::string& path) {
  std::vector<GgufFile> files;
  files.emplace_back(path);
  const int64_t splits = files[0].FindInteger("split.count").value_or(1);
  if (splits <= 1) return files;
  const std::string first = fmt::format("-00001-of-{:05}.gguf", splits);
  if (splits > kMaxSplits || !path.ends_with(first)) {
    Fail("{}: one of {} files; name the first, which ends with {}", path, splits, first);
  }
  for (int64_t i = 2; i <= splits; ++i) {
    files.emplace_back(path.substr(0, path.size() - first.size()) +
                       fmt::format("-{:05}-of-{:05}.gguf", i, splits));
    if (files.back().FindInteger("split.no").value_or(-1) != i - 1) {
      Fail("{}: split.no is not {}", files.back().path(), i - 1);
    }
  }
  return files;
}

const Tensor* FindGgufTensor(const std::vector<GgufFile>& files, const std::string& name) {
  for (const GgufFile& file : files) {
    const auto it = file.tensors().find(name);
    if (it != file.tensors().end()) return &it->second;
  }
  return nullptr;
}

std::map<std::string, Tensor> GgufTensors(const std::vector<GgufFile>& files) {
  const int64_t heads = files[0].Integer("llama.attention.head_count");
  const int64_t kv_heads = files[0].FindInteger("llama.attention.head_count_kv").value_or(heads);
  std::map<std::string, Tensor> tensors;
  for (const GgufFile& file : files) {
    for (const auto& [name, tensor] : file.tensors()) {
      if (name == kRopeFactors) continue;
      const std::string source = SourceName(name, file.path());
      const bool q = source.find(".q_proj.") != source.npos;
      const bool k = source.find(".k_proj.") != source.npos;
      const std::string what = file.path() + ": tensor " + name;
      const auto [it, inserted] =
          tensors.emplace(source, q || k ? PairsApart(tensor, q ? heads : kv_heads, what) : tensor);
      if (!inserted) Fail("{}: stands in two files", what);
    }
  }
  return tensors;
}

}  // namespace nibble
