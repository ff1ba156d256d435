// SPDX-License-Identifier: Apache-2.0
// A small packed model for the fuzz targets that change one. Shapes, offsets and digests that a
// change makes inconsistent are computed again, so that the loader gets past them.
#pragma once

#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "models/checkpoint/packed_checkpoint.h"

namespace nibble {

// config.json: four bits in every linear but the head, and in the cache.
inline Json SmallModel() {
  Json json = {{"model_type", "llama"},    {"hidden_size", 32},
               {"intermediate_size", 96},  {"num_hidden_layers", 1},
               {"num_attention_heads", 2}, {"num_key_value_heads", 1},
               {"head_dim", 16},           {"vocab_size", 8},
               {"eos_token_id", 1},        {"max_position_embeddings", 8}};
  Plan plan = {.k = {.bits = 4}, .v = {.bits = 4}, .norms_folded = true};
  for (const Role role : kLayerRoles) {
    plan.linears[LinearName(0, role)] = {.weights = {.bits = 4}, .activations = {.bits = 4}};
  }
  plan.linears["head"] = plan.linears["embedding"] = {};
  json["quantization_config"] = ToJson(plan);
  return json;
}

// Bytes that are sound in every plane but places: a small positive float and integer.
inline constexpr std::byte kSound{4}, kSoundPlaces{0x44};

// The planes that a plan asks for, as {name: {"dtype", "shape"}}.
class PlaneList {
 public:
  PlaneList(const Plan& plan, const ModelConfig& config) {
    if (!plan.norms_folded || plan.tied_head) {
      Add("final_norm", DType::kF32, {config.hidden_size});
    }
    for (const Role role : config.model_roles()) {
      if (role == Role::kHead && plan.tied_head) continue;
      AddLinear(LinearName(0, role), plan.at(0, role), config.outputs(0, role),
                config.inputs(0, role));
    }
    for (int64_t i = 0; i < config.layers; ++i) {
      for (const Role role : config.layer_roles(i)) {
        AddLinear(LinearName(i, role), plan.at(i, role), config.outputs(i, role),
                  config.inputs(i, role));
      }
      if (plan.norms_folded) continue;
      Add(fmt::format("layers.{}.attention_norm", i), DType::kF32, {config.hidden_size});
      Add(fmt::format("layers.{}.mlp_norm", i), DType::kF32, {config.hidden_size});
    }
  }
  const Json& json() const { return json_; }

 private:
  void Add(const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
    json_[name] = {{"dtype", DTypeName(dtype)}, {"shape", shape}};
  }
  void AddWeights(const std::string& name, const FormatSpec& format, int64_t rows, int64_t cols) {
    for (const Plane& plane : PlanesOf(format, rows, cols)) {
      Add(name + std::string(plane.suffix), plane.dtype, plane.shape);
    }
  }
  void AddLinear(const std::string& name, const LinearPlan& plan, int64_t rows, int64_t cols) {
    AddWeights(name, plan.weights, rows, cols - plan.tail.columns);
    if (plan.tail.columns > 0)
      AddWeights(name + ".tail", plan.tail.weights, rows, plan.tail.columns);
    if (plan.gather) Add(name + ".gather", DType::kI32, {cols});
  }

  Json json_ = Json::object();
};

// The sound bytes of a plane; a gather is the identity.
inline std::string SoundPlane(const std::string& name, uint64_t bytes) {
  if (!name.ends_with(".gather")) {
    return std::string(bytes, static_cast<char>(name.ends_with(".places") ? kSoundPlaces : kSound));
  }
  std::vector<int32_t> order(bytes / sizeof(int32_t));
  std::iota(order.begin(), order.end(), 0);
  return {reinterpret_cast<const char*>(order.data()), order.size() * sizeof(int32_t)};
}

// Bytes of a {"dtype", "shape"}; nullopt if it means nothing, or more than a small model has.
inline std::optional<uint64_t> PlaneBytes(const Json& plane) {
  const auto shape = JsonGet<std::vector<int64_t>>(plane, "shape", "plane");
  const auto name = JsonGet<std::string>(plane, "dtype", "plane");
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (DTypeName(dtype) != name) continue;
    const auto bytes = CheckedBytes(shape, DTypeBytes(dtype));
    return bytes && *bytes <= 1 << 16 ? bytes : std::nullopt;
  }
  return std::nullopt;
}

// A safetensors file of these planes with sound bytes, over which `edits` are written: two bytes
// that choose a place in the data and one to put there, and so on. "__metadata__" is kept as it is.
// Empty if a plane has no size.
inline std::string ShardOf(const Json& planes, std::string_view edits, size_t padding = 0) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, plane] : planes.items()) {
    header[name] = plane;
    if (name == "__metadata__") continue;
    const auto bytes = PlaneBytes(plane);
    if (!bytes || data.size() > 1 << 18) return "";
    header[name]["data_offsets"] = {data.size(), data.size() + *bytes};
    data += SoundPlane(name, *bytes);
  }
  for (; edits.size() >= 3 && !data.empty(); edits.remove_prefix(3)) {
    uint16_t place = 0;
    std::memcpy(&place, edits.data(), sizeof place);
    data[place % data.size()] = edits[2];
  }
  std::string text = header.dump();
  text.resize((text.size() + 8 + 63) / 64 * 64 - 8 + padding, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

}  // namespace nibble
