// SPDX-License-Identifier: Apache-2.0
// A network as data. A decoder layer is always
//   x += O(attention(Q, K, V of norm(x)));  x += Down(silu(Gate(norm(x))) * Up(norm(x)))
// and families differ in the numbers below and in the names of their tensors.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "transforms/rope.h"

namespace nibble {

// The job of a linear layer.
enum class Role { kQ, kK, kV, kO, kGate, kUp, kDown, kHead };
inline constexpr std::array kLayerRoles = {Role::kQ,    Role::kK,  Role::kV,   Role::kO,
                                           Role::kGate, Role::kUp, Role::kDown};
std::string_view RoleName(Role role);  // "q" ... "down", "head"

struct ModelConfig {
  std::string family;  // Hugging Face's model_type
  int64_t hidden_size = 0, intermediate_size = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t vocab_size = 0, context = 0;  // context = max_position_embeddings
  int64_t sliding_window = 0;           // 0 = every earlier key is seen
  double norm_eps = 0;
  bool tied_head = false;
  RopeSpec rope;

  int64_t outputs(Role role) const;  // N of a linear
  int64_t inputs(Role role) const;   // K of a linear
  int64_t parameters() const;        // of all weight matrices and norms
};

// Name of a linear inside Nibble: "layers.3.down", "head" (layer is ignored).
std::string LinearName(int64_t layer, Role role);
// The same in the source, "model.layers.3.mlp.down_proj"; LinearName in a family nobody reads.
std::string SourceName(const ModelConfig& config, int64_t layer, Role role);

// One model family: how its config.json reads and what its tensors are called.
struct Family {
  std::string_view model_type;
  ModelConfig (*parse)(const Json& config, const std::string& where);
  std::string (*linear)(int64_t layer, Role role);  // without ".weight" / ".bias"
  std::string (*attention_norm)(int64_t layer);
  std::string (*mlp_norm)(int64_t layer);
  std::string_view final_norm;
  std::string_view embedding;
};

// The row of a config.json's model_type; an unknown family is an error listing the known ones.
const Family& FamilyOf(const Json& config, const std::string& where);
ModelConfig ParseConfig(const Json& config, const std::string& where);

}  // namespace nibble
