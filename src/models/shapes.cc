// SPDX-License-Identifier: Apache-2.0
#include "models/shapes.h"

#include <vector>

namespace nibble {
namespace {

struct Shape {
  std::string_view name, family;
  int64_t hidden_size, intermediate_size, layers, heads, kv_heads, vocab_size;
  double rope_theta;
  int64_t experts = 0, experts_per_token = 0;
  std::vector<Role> biases = {};
};

const Shape kShapes[] = {
    {"llama2-7b", "llama", 4096, 11008, 32, 32, 32, 32000, 1e4},
    {"llama2-13b", "llama", 5120, 13824, 40, 40, 40, 32000, 1e4},
    {"llama2-70b", "llama", 8192, 28672, 80, 64, 8, 32000, 1e4},
    {"llama3-8b", "llama", 4096, 14336, 32, 32, 8, 128256, 5e5},
    {"qwen2.5-7b",
     "qwen2",
     3584,
     18944,
     28,
     28,
     4,
     152064,
     1e6,
     0,
     0,
     {Role::kQ, Role::kK, Role::kV}},
    {"mixtral-8x7b", "mixtral", 4096, 14336, 32, 32, 8, 32000, 1e6, 8, 2},
};

}  // namespace

ModelConfig FindShape(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Shape& s : kShapes) {
    known.push_back(s.name);
    if (s.name != name) continue;
    const int64_t head_dim = s.hidden_size / s.heads;
    return {.family = std::string(s.family),
            .hidden_size = s.hidden_size,
            .intermediate_size = s.intermediate_size,
            .layers = s.layers,
            .heads = s.heads,
            .kv_heads = s.kv_heads,
            .head_dim = head_dim,
            .vocab_size = s.vocab_size,
            .context = 8192,
            .experts = s.experts,
            .experts_per_token = s.experts_per_token,
            .norm_eps = 1e-5,
            .biases = s.biases,
            .ropes = {{.theta = s.rope_theta, .head_dim = head_dim}}};
  }
  FailUsage("no shape \"{}\"; choose one of {}", name, fmt::join(known, ", "));
}

}  // namespace nibble
