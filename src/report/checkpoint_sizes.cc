// SPDX-License-Identifier: Apache-2.0
#include "report/checkpoint_sizes.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace nibble {
namespace {

void AddOnce(std::string text, std::vector<std::string>& texts) {
  if (std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
}

void Add(const PackedLinear& linear, RoleSize& size) {
  const InputSpec& in = linear.input;
  AddOnce(TailedText(linear.weights.format, in.tail_width, linear.tail.format), size.weights);
  AddOnce(TailedText(in.activations, in.tail_width, in.tail_activations), size.activations);
  size.count += static_cast<double>(linear.weights.rows * in.width);
  size.bytes += static_cast<double>(linear.weights.bytes() + linear.tail.bytes() +
                                    in.gather.size() * sizeof(int32_t));
}

auto Shape(const ModelConfig& c) {
  return std::tuple(c.family, c.layers, c.hidden_size, c.ffn_size(), c.heads, c.kv_heads,
                    c.head_dim, c.vocab_size, c.router.experts, c.router.experts_per_token);
}

}  // namespace

std::vector<RoleSize> SizesByRole(const Network& checkpoint) {
  std::map<Role, RoleSize> kinds;
  for (const LayerWeights& layer : checkpoint.layers) {
    for (const auto& [role, linear] : layer.linears) Add(linear, kinds[KindOf(role)]);
  }
  const bool shared = checkpoint.one_table();
  Add(checkpoint.head, kinds[Role::kHead]);
  if (!shared) {
    const PackedWeights& table = checkpoint.embedding;
    RoleSize& size = kinds[Role::kEmbedding];
    size.weights = {FormatText(table.format)};
    size.count = static_cast<double>(table.rows * table.cols);
    size.bytes = static_cast<double>(table.bytes());
  }
  std::vector<RoleSize> sizes;
  for (auto& [role, size] : kinds) {
    size.role = role == Role::kHead && shared ? "head, embedding" : RoleName(role);
    sizes.push_back(std::move(size));
  }
  return sizes;
}

void RequireCheckpointOf(const Network& source, const Network& checkpoint) {
  if (!checkpoint.packed) {
    FailUsage("{}: is no checkpoint of nibble quantize", checkpoint.directory);
  }
  const ModelConfig &a = source.config, &b = checkpoint.config;
  if (Shape(a) == Shape(b)) return;
  FailUsage(
      "{}: is a checkpoint of another model: {}, {} layers, hidden {}, vocabulary {}; {} is {}, {} "
      "layers, hidden {}, vocabulary {}",
      checkpoint.directory, b.family, b.layers, b.hidden_size, b.vocab_size, source.directory,
      a.family, a.layers, a.hidden_size, a.vocab_size);
}

}  // namespace nibble
