// SPDX-License-Identifier: Apache-2.0
// A plan says what a quantized model is: one concrete line per linear plus the cache. It is made
// from a recipe (quantize/recipes/recipe.h), printed by --dry-run, stored in the checkpoint's
// config.json, and the only thing the engine needs to know about how a model was quantized.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/kv_format.h"
#include "formats/packed_linear.h"
#include "models/config.h"

namespace nibble {

// The last columns of an input and of the weights that read it, in formats of their own.
struct TailPlan {
  int64_t columns = 0;  // 0: none
  FormatSpec weights, activations;
  bool operator==(const TailPlan&) const = default;
};

struct LinearPlan {
  FormatSpec weights, activations;  // of all columns but the tail
  bool input_scales = false;        // of each entry, online; a plane of the linear
  TransformSpec input_transform;    // online
  int transform_bits = 0;           // InputSpec::transform_bits; 0 where there is no transform
  bool gather = false;              // then a permutation, online; a plane of the linear
  TailPlan tail;
  TransformSpec output_transform = {};  // online, of the products

  bool operator==(const LinearPlan&) const = default;
  void LeaveOutTransform() { input_transform = {}, transform_bits = 0; }
  // The preparation of an input of `width` by this plan; scales and permutation are left out.
  InputSpec Input(int64_t width) const;
};
// The plan of linears that no recipe changes, or null. A router decides, and is small; linears of
// the layers' own inputs are small, too.
inline const LinearPlan kRouterPlan = {.weights = {.bits = 32}}, kLayerInputPlan = {};
inline const LinearPlan* FixedPlan(Role role) {
  if (role == Role::kRouter) return &kRouterPlan;
  const bool of_inputs = role == Role::kLayerGate || role == Role::kLayerOutput;
  return of_inputs || role == Role::kLayerProjection ? &kLayerInputPlan : nullptr;
}

// Returns whether the engine transforms outputs of such a linear: what is read by a next op, or
// added to the residual stream behind a norm.
bool MayTransformOutputs(const ModelConfig& config, Role role);

struct Plan {
  static constexpr int kVersion = 2;
  std::map<std::string, LinearPlan> linears;  // by LinearName; the embedding has weights only
  FormatSpec k, v;
  // Bits of the recent form (formats/kv_format.h) where keys or values have fewer; 0: there is
  // none.
  int recent_bits = 0;
  // Formats of layers whose cache differs from k and v. A layer that reads another's keys has the
  // formats of that layer.
  std::map<int64_t, CacheFormats> layer_caches;
  // The transform of one head, online on q and k; layers with longer or shorter heads have the
  // Hadamard transform of theirs.
  TransformSpec kv_rotation;
  // Each layer's keys are stored without a vector of its own, LayerVector::kKeyCenter, which takes
  // the same off all scores of a query: softmax does not see it. Not with sinks or capped scores.
  bool center_keys = false;
  bool norms_folded = false;
  // The head multiplies with the embedding's table. Where norms are folded and the table is thus
  // rotated by M, the rotation of the residual stream, M diag(final norm) M^T stands in front of
  // it: M is the head's online transform but for signs, or the product is a matrix of its own.
  bool tied_head = false, head_rotation = false;
  // The record of how the plan came about; the engine does not read it.
  Json provenance = Json::object();

  const LinearPlan& at(int64_t layer, Role role) const;
};

// Returns whether any weights of layers are quantized; tables do not count.
bool RoundsLayers(const Plan& plan);

// The value of "quantization_config" in a Nibble checkpoint's config.json.
Json ToJson(const Plan& plan);
// Checks the plan against the model: every linear named once, widths and groups fitting.
Plan PlanFromJson(const Json& json, const ModelConfig& config, const std::string& where);

// The cache of a planned model's layer, and of each.
KvSpec LayerCache(const ModelConfig& config, const Plan& plan, int64_t layer);
std::vector<KvSpec> LayerCaches(const ModelConfig& config, const Plan& plan);
// LayerCaches for passes that hold one form alone: the recent one where there is one, which
// attention looks at most.
std::vector<KvSpec> FinestLayerCaches(const ModelConfig& config, const Plan& plan);
// The cache with the largest pages.
const KvSpec& LargestCache(std::span<const KvSpec> caches);

// SHA-256 of the plan's JSON text, less provenance, layer_caches, which are chosen once weights are
// there, and recent_bits: no tensor depends on these. Every shard carries it, so that weights and a
// plan that does not belong to them (an online transform removed, say) are refused.
std::string PlanDigest(const Plan& plan);

}  // namespace nibble
