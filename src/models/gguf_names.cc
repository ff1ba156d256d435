// SPDX-License-Identifier: Apache-2.0
// A GGUF file's names of tensors (ggml's docs/gguf.md) and what converters do to their rows.
#include "models/gguf_names.h"

#include <cstring>
#include <memory>
#include <utility>

namespace nibble {
namespace {

std::string Part(int64_t layer, const char* name) {
  return fmt::format("blk.{}.{}", layer, name);
}

std::string LinearOfBlock(int64_t layer, Role role) {
  constexpr const char* kNames[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                    "ffn_gate", "ffn_up", "ffn_down"};
  if (role == Role::kHead) return "output";
  if (role == Role::kEmbedding) return "token_embd";
  return Part(layer, kNames[static_cast<size_t>(role)]);
}

std::string NormOfBlock(int64_t layer, Norm norm) {
  constexpr const char* kNames[] = {"attn_norm.weight", "ffn_norm.weight", "attn_q_norm.weight",
                                    "attn_k_norm.weight"};
  return Part(layer, kNames[static_cast<size_t>(norm)]);
}

}  // namespace

const Family kGgufLlama = {.model_type = "llama",
                           .linear = LinearOfBlock,
                           .norm = NormOfBlock,
                           .final_norm = "output_norm.weight",
                           .rope_pairs = true};

Tensor PairsApart(const Tensor& tensor, int64_t head_dim) {
  const int64_t rows = tensor.shape[0], half = head_dim / 2;
  const size_t row_bytes = tensor.bytes() / static_cast<size_t>(rows);
  std::vector<std::byte> turned(tensor.bytes());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row % head_dim, from = row - at + at % half * 2 + at / half;
    std::memcpy(turned.data() + static_cast<size_t>(row) * row_bytes,
                tensor.data + static_cast<size_t>(from) * row_bytes, row_bytes);
  }
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(turned));
  return {tensor.dtype, tensor.shape, owner->data(), owner};
}

}  // namespace nibble
