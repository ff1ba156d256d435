// SPDX-License-Identifier: Apache-2.0
// The Nibble checkpoint (docs/checkpoint_format.md): config.json with the plan, one safetensors
// shard per layer plus one for the rest, tokenizer files, manifest.json (manifest.h), perhaps a
// tile plane (tile_plane.h).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/network.h"
#include "models/plan.h"
#include "source/pooling_document.h"

namespace nibble {

// Fills `net` (config and store are set) from a Nibble checkpoint.
void LoadPacked(Network& net, const Json& quantization_config, const std::string& where);

// One layer's linears and norms from planes found by name (nullptr = absent); checked like a whole
// checkpoint. `where` names the file in errors.
using FindTensor = std::function<const Tensor*(const std::string&)>;
LayerWeights ReadPackedLayer(const FindTensor& find, const Plan& plan, const ModelConfig& config,
                             int64_t index, const std::string& where);

// Linears that read one prepared input must prepare it alike; throws.
void RequireSharedInputs(const ModelConfig& config, int64_t index, const LayerWeights& layer,
                         const std::string& where);

// One tensor on its way to a shard; borrowed bytes.
struct NamedTensor {
  std::string name;
  Tensor view;
};
// Planes of one linear under their names in the file ("layers.0.q.codes", ...).
std::vector<NamedTensor> LinearTensors(const std::string& name, const PackedLinear& linear);
// Planes and norms of a layer.
std::vector<NamedTensor> LayerTensors(int64_t index, const LayerWeights& layer);

// Writes a shard atomically. Its metadata gets the digest of all that it holds; that of a
// checkpoint must hold kPlanDigestKey. Floats that are not finite are refused: no loader would take
// them.
inline constexpr const char* kPlanDigestKey = "plan_sha256";
void WriteShard(const std::string& path, const std::vector<NamedTensor>& tensors,
                std::map<std::string, std::string> metadata);

// A shard as WriteShard left it; nothing if it is absent, damaged or not written by it.
std::optional<SafetensorsFile> OpenWholeShard(const std::string& path);

std::string LayerShardName(int64_t layer);  // "layer-00003.safetensors"
inline constexpr const char* kRestShardName = "model-rest.safetensors";

inline constexpr const char* kProvenanceName = "provenance.json";

// Files of the source that travel with the weights.
inline constexpr std::array kCompanions = {
    "tokenizer.json",      "tokenizer_config.json",  "special_tokens_map.json",
    "chat_template.jinja", "chat_template.json",     "tool_use.jinja",
    "tokenizer.model",     "generation_config.json", kPoolingName};

// Returns whether a checkpoint may hold a file of this name, which `quantize --force` may remove.
bool IsCheckpointFile(std::string_view name);

// model.safetensors.index.json over all shards of a directory.
void WriteIndex(const std::string& directory, int64_t layers);

}  // namespace nibble
