// SPDX-License-Identifier: Apache-2.0
#include "measure/random_network.h"

#include <cmath>
#include <filesystem>
#include <tuple>
#include <vector>

#include "base/file.h"
#include "base/half.h"
#include "base/progress.h"
#include "base/rng.h"
#include "io/atomic_file.h"
#include "io/publish.h"
#include "models/checkpoint/manifest.h"
#include "models/checkpoint/packed_checkpoint.h"
#include "models/families/family.h"
#include "quantize/learn/learn_scales.h"
#include "quantize/plan/make_plan.h"

namespace nibble {
namespace {

// bf16, uniform in [-limit, limit).
Tensor RandomBf16(Rng& rng, std::vector<int64_t> shape, double limit) {
  std::vector<uint16_t> values(static_cast<size_t>(Tensor{DType::kBf16, shape}.elements()));
  const float step = static_cast<float>(limit / 32768);
  for (size_t i = 0; i < values.size();) {
    for (uint64_t four = rng.Next(), n = 0; n < 4 && i < values.size(); ++n, four >>= 16) {
      values[i++] = Bf16FromF32(step * static_cast<float>(static_cast<int16_t>(four & 0xFFFF)));
    }
  }
  return Tensor::Of(DType::kBf16, std::move(shape), std::move(values));
}

template <typename T>
Tensor Filled(const Plane& plane, T value) {
  return Tensor::Of(plane.dtype, plane.shape, std::vector<T>(plane.bytes() / sizeof(T), value));
}

// Codes are uniform over their range; the scale gives outputs the variance of inputs.
PackedWeights RandomWeights(Rng& rng, int64_t rows, int64_t cols, const FormatSpec& format) {
  constexpr uint8_t kGroupScale = 8;
  PackedWeights w = {.format = format, .rows = rows, .cols = cols};
  if (!format.quantized()) {
    w.values = RandomBf16(rng, {rows, cols}, std::sqrt(3.0 / static_cast<double>(cols)));
    if (format.bits == 32) w.values = Tensor::Of(DType::kF32, {rows, cols}, ToF32(w.values).data);
    return w;
  }
  NIBBLE_CHECK(format.stored(cols) * format.bits % 8 == 0, "{} of {} bits", cols, format.bits);
  const double deviation = std::ldexp(1.0, format.bits) / std::sqrt(12.0);
  const uint16_t scale =
      F16FromF32(static_cast<float>(1 / (deviation * std::sqrt(static_cast<double>(cols)))));
  for (const Plane& plane : PlanesOf(format, rows, cols)) {
    Tensor& tensor = w.*plane.tensor;
    if (&tensor == &w.codes) {
      std::vector<uint8_t> codes(plane.bytes());
      for (uint8_t& byte : codes) byte = static_cast<uint8_t>(rng.Next() >> 56);
      tensor = Tensor::Of(plane.dtype, plane.shape, std::move(codes));
    } else if (&tensor == &w.places) {
      tensor = Filled<uint8_t>(plane, 0b1001'0100);
    } else if (&tensor == &w.group_scales) {
      tensor = Filled(plane, kGroupScale);
    } else if (&tensor == &w.zeros) {
      tensor = Filled<int8_t>(plane, 0);
    } else if (plane.dtype == DType::kF16) {
      tensor = Filled(plane, scale);
    } else {
      tensor = Filled(plane, F32FromF16(scale) / (format.second_level ? kGroupScale : 1));
    }
  }
  return w;
}

Tensor Ones(int64_t width) {
  return Tensor::Of(DType::kF32, {width}, std::vector<float>(static_cast<size_t>(width), 1));
}

Plan RandomPlan(const ModelConfig& config, const Recipe& recipe) {
  Plan plan = MakePlan(config, recipe);
  constexpr int64_t kTokens = 1 << 20;  // enough to learn from
  if (LearnsScales(recipe, config, kTokens)) PlanInputScales(config, plan);
  for (auto& [name, linear] : plan.linears) {
    if (linear.activations.clip == 0) linear.activations.clip = 1;  // nothing to search it on
  }
  return plan;
}

std::vector<int32_t> Reversed(int64_t count) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) order[i] = static_cast<int32_t>(count - 1 - i);
  return order;
}

}  // namespace

Network RandomNetwork(const ModelConfig& config, const Recipe& recipe, uint64_t seed) {
  Rng rng(seed);
  Network net{.config = config, .packed = true};
  const Plan plan = RandomPlan(config, recipe);
  net.caches = LayerCaches(config, plan);
  const auto linear = [&](int64_t layer, Role role) {
    const LinearPlan& p = plan.at(layer, role);
    const int64_t rows = config.outputs(layer, role), cols = config.inputs(layer, role);
    PackedLinear out{.weights = RandomWeights(rng, rows, cols - p.tail.columns, p.weights),
                     .input = p.Input(cols),
                     .output_transform = p.output_transform};
    if (p.tail.columns > 0) {
      out.tail = RandomWeights(rng, rows, p.tail.columns, p.tail.weights);
    }
    if (p.input_scales) out.input.scales.assign(static_cast<size_t>(cols), 1);
    if (p.gather) out.input.gather = Reversed(cols);  // shared by all readers of an input
    if (config.has_bias(role)) out.bias = RandomBf16(rng, {rows}, 1);
    return out;
  };
  std::map<std::tuple<bool, bool, int64_t, int64_t, int64_t>, LayerWeights>
      kinds;  // what layers are shaped by
  for (int64_t i = 0; i < config.layers; ++i) {
    const HeadShape heads = config.head_shape(i);
    const auto [kind, added] =
        kinds.try_emplace({config.has_experts(i), config.spec(i).owns_kv(), heads.kv_heads,
                           heads.head_dim, config.inputs(i, config.first(i, Role::kDown))});
    LayerWeights& layer = kind->second;
    for (Role role : config.layer_roles(i)) {
      if (added) layer[role] = linear(i, role);
    }
    for (LayerVector norm : config.layer_vectors(i)) {
      if (!added || (plan.norms_folded && IsFoldable(norm))) continue;
      layer.vectors[norm] = Ones(config.width(i, norm));
    }
    if (added && plan.center_keys && config.spec(i).owns_kv()) {
      layer.vectors[LayerVector::kKeyCenter] = Ones(config.width(i, LayerVector::kKeyCenter));
    }
    net.layers.push_back(layer);
  }
  net.head = linear(0, Role::kHead);
  net.embedding = RandomWeights(rng, config.vocab_size, config.hidden_size,
                                plan.at(0, Role::kEmbedding).weights);
  if (config.layer_input_size == 0) return net;
  net.layer_table = linear(0, Role::kLayerTable).weights;
  net.layer_projection = linear(0, Role::kLayerProjection);
  net.layer_input_norm = Ones(config.layer_input_size);
  return net;
}

void WriteRandomCheckpoint(Json json, const Recipe& recipe, uint64_t seed,
                           const std::string& directory) {
  namespace fs = std::filesystem;
  if (fs::exists(directory)) Fail("{} exists", directory);
  const ModelConfig config = ParseConfig(json, directory);
  const fs::path partial = directory + ".partial";
  RemoveKnownFiles(partial.string(), IsCheckpointFile);
  CreateDirectories(partial);
  const Network net = RandomNetwork(config, recipe, seed);
  const Plan plan = RandomPlan(config, recipe);
  const std::map<std::string, std::string> metadata = {{kPlanDigestKey, PlanDigest(plan)}};
  Progress progress("write", "layers", static_cast<double>(config.layers));
  for (int64_t i = 0; i < config.layers; ++i) {
    progress.Update(static_cast<double>(i), directory);
    WriteShard((partial / LayerShardName(i)).string(),
               LayerTensors(i, net.layers[static_cast<size_t>(i)]), metadata);
  }
  std::vector<NamedTensor> rest;
  const auto add = [&](Role role, const PackedLinear& linear) {
    for (NamedTensor& t : LinearTensors(LinearName(0, role), linear)) rest.push_back(std::move(t));
  };
  add(Role::kHead, net.head);
  add(Role::kEmbedding, {net.embedding});
  if (config.layer_input_size > 0) {
    add(Role::kLayerTable, {net.layer_table});
    add(Role::kLayerProjection, net.layer_projection);
    rest.push_back({"layer_input_norm", net.layer_input_norm});
  }
  WriteShard((partial / kRestShardName).string(), rest, metadata);
  json["quantization_config"] = ToJson(plan);
  WriteFileAtomic((partial / "config.json").string(), json.dump(2));
  WriteIndex(partial.string(), config.layers);
  WriteManifest(partial.string(), DigestFiles(partial.string()));
  PublishDirectory(partial.string(), directory, false, IsCheckpointFile);
}

}  // namespace nibble
