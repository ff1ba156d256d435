// SPDX-License-Identifier: Apache-2.0
// Phi 3, 3.5 and 4: q, k and v in one tensor, gate and up in another.
#include "models/families/llama.h"

namespace nibble {
namespace {

std::string FusedLinear(const ModelConfig& config, int64_t layer, Role role) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  switch (role) {
    case Role::kQ:
    case Role::kK:
    case Role::kV:
      return prefix + "self_attn.qkv_proj";
    case Role::kGate:
    case Role::kUp:
      return prefix + "mlp.gate_up_proj";
    default:
      return LlamaLinear(config, layer, role);
  }
}

}  // namespace

RowBlock FusedRows(const ModelConfig& c, Role role) {
  const int64_t q = c.outputs(0, Role::kQ), kv = c.outputs(0, Role::kK),
                gate = c.outputs(0, Role::kGate);
  switch (role) {
    case Role::kQ:
      return {0, q + 2 * kv};
    case Role::kK:
      return {q, q + 2 * kv};
    case Role::kV:
      return {q + kv, q + 2 * kv};
    case Role::kGate:
      return {0, 2 * gate};
    case Role::kUp:
      return {gate, 2 * gate};
    default:
      return {};
  }
}

const Family kPhi3 = {.model_type = "phi3",
                      .parse = ParseMistral,
                      .linear = FusedLinear,
                      .vector = LlamaVector,
                      .final_norm = "model.norm.weight",
                      .rows = FusedRows};

}  // namespace nibble
