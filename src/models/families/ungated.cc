// SPDX-License-Identifier: Apache-2.0
#include "models/families/ungated.h"

namespace nibble {
namespace {

GateSpec ParseActivation(const std::string& name, const std::string& where) {
  GateSpec gating;
  if (name == "gelu") {
    gating = kNormalGelu;
  } else if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") {
    gating = kGelu;
  } else if (name == "relu") {
    gating = kRelu;
  } else {
    Fail("{}: activation \"{}\", expected gelu, gelu_new, gelu_fast, gelu_pytorch_tanh or relu",
         where, name);
  }
  gating.alone = true;
  return gating;
}

}  // namespace

ModelConfig ParseUngated(const Json& config, const std::string& activation, double norm_eps,
                         bool biases, const std::string& where) {
  Json llama = config;
  llama["rms_norm_eps"] = norm_eps;
  llama["hidden_act"] = "silu";
  ModelConfig c = ParseLlama(llama, where);
  c.gating = ParseActivation(activation, where);
  c.tied_head = false;  // where it is, embeddings lose their mean and the head does not
  c.biases = {Role::kQ, Role::kK, Role::kV, Role::kGate, Role::kHead};
  if (biases) c.biases.insert(c.biases.end(), {Role::kO, Role::kDown});
  return c;
}

RowBlock GroupedRows(const ModelConfig& c, Role role) {
  if (role != Role::kQ && role != Role::kK && role != Role::kV) return {};
  const int64_t queries = c.heads / c.kv_heads * c.head_dim;
  const int64_t period = queries + 2 * c.head_dim;
  return {.first = role == Role::kQ   ? 0
                   : role == Role::kK ? queries
                                      : queries + c.head_dim,
          .total = c.kv_heads * period,
          .run = role == Role::kQ ? queries : c.head_dim,
          .period = period};
}

}  // namespace nibble
