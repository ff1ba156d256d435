// SPDX-License-Identifier: Apache-2.0
// A GGUF file's names of tensors (ggml's docs/gguf.md) and what converters do to their rows.
#include "models/import/gguf_names.h"

#include <cstring>
#include <memory>
#include <utility>

#include "models/families/llama.h"

namespace nibble {
namespace {

std::string Part(int64_t layer, const char* name) {
  return fmt::format("blk.{}.{}", layer, name);
}

std::string LinearOfBlock(const ModelConfig&, int64_t layer, Role role) {
  constexpr const char* kNames[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                    "ffn_gate", "ffn_up", "ffn_down"};
  if (role == Role::kHead) return "output";
  if (role == Role::kEmbedding) return "token_embd";
  if (role == Role::kRouter) return Part(layer, "ffn_gate_inp");
  const std::string name = Part(layer, kNames[static_cast<size_t>(KindOf(role))]);
  return ExpertOf(role) < 0 ? name : name + "_exps";
}

// A linear's experts are stacked in one tensor.
RowBlock RowsOfExpert(const ModelConfig& c, Role role) {
  if (ExpertOf(role) < 0) return {};
  const int64_t rows = c.outputs(0, role);
  return {ExpertOf(role) * rows, c.router.experts * rows, c.router.experts};
}

std::string FusedLinearOfBlock(const ModelConfig& config, int64_t layer, Role role) {
  switch (role) {
    case Role::kQ:
    case Role::kK:
    case Role::kV:
      return Part(layer, "attn_qkv");
    case Role::kGate:
    case Role::kUp:
      return Part(layer, "ffn_up");
    default:
      return LinearOfBlock(config, layer, role);
  }
}

std::string VectorOfBlock(const ModelConfig&, int64_t layer, LayerVector vector) {
  constexpr const char* kNames[] = {
      "attn_norm",           "ffn_norm",      "attn_q_norm", "attn_k_norm",
      "post_attention_norm", "post_ffw_norm", "attn_sinks",  "exp_probs_b"};
  return Part(layer, kNames[static_cast<size_t>(vector)]) + ".weight";
}

// The norm in front of the FFN has the name that others have for one behind attention.
std::string GptOssVectorOfBlock(const ModelConfig& config, int64_t layer, LayerVector vector) {
  return VectorOfBlock(config, layer,
                       vector == LayerVector::kMlpNorm ? LayerVector::kPostAttentionNorm : vector);
}

constexpr Family InBlocks(std::string_view model_type, bool rope_pairs) {
  return {.model_type = model_type,
          .linear = LinearOfBlock,
          .vector = VectorOfBlock,
          .final_norm = "output_norm.weight",
          .rope_pairs = rope_pairs,
          .rows = RowsOfExpert};
}

constexpr Family kGgufFamilies[] = {
    InBlocks("llama", true),
    InBlocks("mixtral", true),
    InBlocks("smollm3", true),
    InBlocks("granite", true),
    InBlocks("olmo2", false),
    InBlocks("qwen2", false),
    InBlocks("qwen3", false),
    InBlocks("qwen3_moe", false),
    InBlocks("gemma2", false),
    InBlocks("gemma3_text", false),
    {.model_type = "gpt_oss",
     .linear = LinearOfBlock,
     .vector = GptOssVectorOfBlock,
     .final_norm = "output_norm.weight",
     .rows = RowsOfExpert},
    {.model_type = "phi3",
     .linear = FusedLinearOfBlock,
     .vector = VectorOfBlock,
     .final_norm = "output_norm.weight",
     .rows = FusedRows},
};

}  // namespace

const Family& GgufFamilyOf(const ModelConfig& config, const std::string& where) {
  for (const Family& family : kGgufFamilies) {
    if (family.model_type == config.family) return family;
  }
  Fail("{}: no names of tensors are known for {}", where, config.family);
}

Tensor PairsApart(const Tensor& tensor, int64_t head_dim, int64_t turned) {
  const int64_t rows = tensor.shape[0], half = turned / 2;
  const size_t row_bytes = tensor.bytes() / static_cast<size_t>(rows);
  std::vector<std::byte> rows_apart(tensor.bytes());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row % head_dim;
    const int64_t from = at < turned ? row - at + at % half * 2 + at / half : row;
    std::memcpy(rows_apart.data() + static_cast<size_t>(row) * row_bytes,
                tensor.data + static_cast<size_t>(from) * row_bytes, row_bytes);
  }
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(rows_apart));
  return {tensor.dtype, tensor.shape, owner->data(), owner};
}

}  // namespace nibble
