// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <algorithm>
#include <vector>

namespace nibble {

namespace {

constexpr int64_t kGate = static_cast<int64_t>(Role::kGate),
                  kExperts = static_cast<int64_t>(Role::kExperts), kExpertRoles = 3;

}  // namespace

Role OfExpert(Role role, int64_t expert) {
  if (expert < 0) return role;
  return static_cast<Role>(kExperts + kExpertRoles * expert + static_cast<int64_t>(role) - kGate);
}

int64_t ExpertOf(Role role) {
  const int64_t number = static_cast<int64_t>(role) - kExperts;
  return number < 0 ? -1 : number / kExpertRoles;
}

Role KindOf(Role role) {
  const int64_t number = static_cast<int64_t>(role) - kExperts;
  return number < 0 ? role : static_cast<Role>(kGate + number % kExpertRoles);
}

std::string RoleName(Role role) {
  constexpr std::string_view kNames[] = {
      "q",          "k",           "v",         "o",      "gate",        "up",
      "down",       "head",        "embedding", "router", "layer_table", "layer_projection",
      "layer_gate", "layer_output"};
  const std::string_view kind = kNames[static_cast<size_t>(KindOf(role))];
  const int64_t expert = ExpertOf(role);
  return expert < 0 ? std::string(kind) : fmt::format("experts.{}.{}", expert, kind);
}

std::string_view VectorName(LayerVector vector) {
  constexpr std::string_view kNames[] = {
      "attention_norm", "mlp_norm",     "q_norm",        "k_norm",          "post_attention_norm",
      "post_mlp_norm",  "sinks",        "router_bias",   "layer_scale",     "post_layer_input_norm",
      "router_norm",    "experts_norm", "expert_scales", "post_dense_norm", "post_experts_norm",
      "key_center"};
  return kNames[static_cast<size_t>(vector)];
}

LayerSpec ModelConfig::spec(int64_t layer) const {
  return specs.empty() ? LayerSpec{}
                       : specs[std::min(static_cast<size_t>(layer), specs.size() - 1)];
}

HeadShape ModelConfig::head_shape(int64_t layer) const {
  const LayerSpec own = spec(layer);
  return {heads, own.kv_heads > 0 ? own.kv_heads : kv_heads,
          own.head_dim > 0 ? own.head_dim : head_dim};
}

int64_t ModelConfig::Widest(Role role) const {
  return Largest([&](int64_t layer) { return outputs(layer, role); });
}

int64_t ModelConfig::ffn_size() const {
  return Largest([&](int64_t layer) {
    const int64_t dense = has_ffn(layer) ? outputs(layer, Role::kGate) : 0;
    return std::max(dense, has_experts(layer) ? expert_size : 0);
  });
}

bool ModelConfig::shares_kv() const {
  return std::ranges::any_of(specs, [](const LayerSpec& spec) { return !spec.owns_kv(); });
}

bool ModelConfig::lends_kv(int64_t layer) const {
  return std::ranges::count(specs, layer, &LayerSpec::kv_layer) > 0;
}

std::vector<LayerVector> ModelConfig::layer_vectors(int64_t layer) const {
  std::vector<LayerVector> all = vectors;
  const auto of_experts = [](LayerVector vector) {
    return vector == LayerVector::kRouterBias || vector >= LayerVector::kRouterNorm;
  };
  if (!has_experts(layer)) std::erase_if(all, of_experts);
  if (!spec(layer).owns_kv()) std::erase(all, LayerVector::kKeyNorm);
  return all;
}

std::vector<Role> ModelConfig::layer_roles(int64_t layer) const {
  std::vector<Role> roles = {kLayerRoles.begin(), kLayerRoles.end()};
  if (gating.alone) std::erase(roles, Role::kUp);
  if (!spec(layer).owns_kv()) {
    std::erase_if(roles, [](Role role) { return role == Role::kK || role == Role::kV; });
  }
  if (!has_ffn(layer)) {
    std::erase_if(roles, [](Role role) { return role >= Role::kGate && role <= Role::kDown; });
  }
  if (has_experts(layer)) roles.push_back(Role::kRouter);
  for (int64_t e = 0; has_experts(layer) && e < router.all(); ++e) {
    for (Role role : {Role::kGate, Role::kUp, Role::kDown}) roles.push_back(OfExpert(role, e));
  }
  if (layer_input_size > 0) {
    roles.insert(roles.end(), {Role::kLayerGate, Role::kLayerOutput});
  }
  return roles;
}

std::vector<Role> ModelConfig::model_roles() const {
  const auto end = layer_input_size > 0 ? kModelRoles.end() : kModelRoles.begin() + 2;
  return {kModelRoles.begin(), end};
}

bool ModelConfig::has_bias(Role role) const {
  return std::ranges::find(biases, KindOf(role)) != biases.end();
}

bool ModelConfig::has(LayerVector vector) const {
  return std::ranges::find(vectors, vector) != vectors.end();
}

std::optional<LayerVector> ModelConfig::NormInFront(Role role) const {
  const auto if_any = [&](LayerVector norm) {
    return has(norm) ? std::optional(norm) : std::nullopt;
  };
  switch (KindOf(role)) {
    case Role::kQ:
    case Role::kK:
    case Role::kV:
      return if_any(LayerVector::kAttentionNorm);
    case Role::kRouter:
      return if_any(has(LayerVector::kRouterNorm) ? LayerVector::kRouterNorm
                                                  : LayerVector::kMlpNorm);
    case Role::kGate:
    case Role::kUp:
      return if_any(ExpertOf(role) >= 0 && has(LayerVector::kExpertsNorm)
                        ? LayerVector::kExpertsNorm
                        : LayerVector::kMlpNorm);
    default:
      return {};
  }
}

int64_t ModelConfig::width(int64_t layer, LayerVector vector) const {
  const HeadShape shape = head_shape(layer);
  switch (vector) {
    case LayerVector::kQueryNorm:
      return wide_query_norms ? shape.q_width() : shape.head_dim;
    case LayerVector::kKeyNorm:
      return wide_query_norms ? shape.kv_width() : shape.head_dim;
    case LayerVector::kSinks:
      return heads;
    case LayerVector::kKeyCenter:
      return shape.kv_width();
    case LayerVector::kRouterBias:
    case LayerVector::kExpertScales:
      return router.experts;
    case LayerVector::kLayerScale:
      return 1;
    default:
      return hidden_size;
  }
}

int64_t ModelConfig::outputs(int64_t layer, Role role) const {
  switch (KindOf(role)) {
    case Role::kQ:
      return head_shape(layer).q_width();
    case Role::kK:
    case Role::kV:
      return head_shape(layer).kv_width();
    case Role::kO:
    case Role::kDown:
    case Role::kLayerOutput:
      return hidden_size;
    case Role::kGate:
    case Role::kUp:
      if (ExpertOf(role) >= 0) return expert_size;
      return spec(layer).intermediate_size > 0 ? spec(layer).intermediate_size : intermediate_size;
    case Role::kHead:
    case Role::kEmbedding:
      return vocab_size;
    case Role::kRouter:
      return router.experts;
    case Role::kLayerTable:  // of token after token, a row for each layer
      return vocab_size * layers;
    case Role::kLayerProjection:
      return layers * layer_input_size;
    case Role::kLayerGate:
      return layer_input_size;
    case Role::kExperts:
      break;
  }
  NIBBLE_CHECK(false, "role {}", static_cast<int>(role));
}

int64_t ModelConfig::inputs(int64_t layer, Role role) const {
  if (role == Role::kO) return outputs(layer, Role::kQ);
  if (role == Role::kLayerOutput || role == Role::kLayerTable) return layer_input_size;
  return KindOf(role) == Role::kDown ? outputs(layer, OfExpert(Role::kUp, ExpertOf(role)))
                                     : hidden_size;
}

int64_t ModelConfig::parameters() const {
  int64_t all = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (LayerVector vector : layer_vectors(layer)) all += width(layer, vector);
    for (Role role : layer_roles(layer)) all += outputs(layer, role) * inputs(layer, role);
  }
  for (Role role : model_roles()) {
    if (role != Role::kHead || !tied_head) all += outputs(0, role) * inputs(0, role);
  }
  return all + hidden_size + layer_input_size;
}

std::string LinearName(int64_t layer, Role role) {
  if (std::ranges::count(kModelRoles, role) > 0) return RoleName(role);
  return fmt::format("layers.{}.{}", layer, RoleName(role));
}

}  // namespace nibble
