// SPDX-License-Identifier: Apache-2.0
// What a quantized model is: one concrete line per linear plus the cache. Made from a recipe
// (quantize/recipe.h), printed by --dry-run, stored in the checkpoint's config.json, and the only
// thing the engine needs to know about how a model was quantized.
#pragma once

#include <map>
#include <string>

#include "formats/kv_format.h"
#include "models/config.h"

namespace nibble {

struct LinearPlan {
  FormatSpec weights, activations;
  TransformSpec input_transform;  // online
};

struct Plan {
  static constexpr int kVersion = 1;
  std::map<std::string, LinearPlan> linears;  // by LinearName
  FormatSpec k, v;
  TransformSpec kv_rotation;  // of one head, online on Q and K
  bool norms_folded = false;
  // How it came about; the engine does not read these.
  Json provenance = Json::object();

  const LinearPlan& at(int64_t layer, Role role) const;
};

// The value of "quantization_config" in a Nibble checkpoint's config.json.
Json ToJson(const Plan& plan);
// Checks the plan against the model: every linear named once, widths and groups fitting.
Plan PlanFromJson(const Json& json, const ModelConfig& config, const std::string& where);

// Cache description of a planned model.
KvSpec PlannedKv(const ModelConfig& config, const Plan& plan);

// SHA-256 of the plan's JSON text, provenance left out. Every shard carries it, so that weights and
// a plan that does not belong to them (an online transform removed, say) are refused.
std::string PlanDigest(const Plan& plan);

}  // namespace nibble
