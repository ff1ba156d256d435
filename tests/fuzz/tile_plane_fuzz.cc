// SPDX-License-Identifier: Apache-2.0
// A tile plane and a manifest that any bytes have changed: the first line is a merge patch of the
// plane's tensors and metadata, the second one of manifest.json, the next byte shifts the data. The
// plane is either used, whole and aligned, or refused with a reason.
#include <set>

#include "formats/tile_order.h"
#include "fuzz_input.h"
#include "io/sha256.h"
#include "models/checkpoint/manifest.h"
#include "models/checkpoint/tile_plane.h"
#include "models/families/family.h"
#include "models/import/open_network.h"
#include "packed_model.h"

namespace nibble {
namespace {

// An opened model with a tile plane, and the plane's header.
struct Model {
  Model() {
    const Json json = SmallModel();
    const ModelConfig config = ParseConfig(json, "model");
    const Plan plan = PlanFromJson(json["quantization_config"], config, "model");
    Json planes = PlaneList(plan, config).json();
    planes["__metadata__"] = {{kPlanDigestKey, PlanDigest(plan)}};
    directory.Write("config.json", json.dump());
    directory.Write("model.safetensors", ShardOf(planes, ""));
    manifest = {{"files", Json::object()}};
    for (const auto& [name, file] : DigestFiles(directory.path())) {
      manifest["files"][name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
    }
    directory.Write("manifest.json", manifest.dump());
    net = OpenNetwork(directory.path());
    WriteTiles(net);
    const SafetensorsFile file(directory.path() + "/" + kTilesName);
    for (const auto& [name, view] : file.tensors()) {
      tensors[name] = {{"dtype", DTypeName(view.dtype)}, {"shape", view.shape}};
    }
    tensors["__metadata__"] = file.metadata();
  }

  ScratchDirectory directory;
  Network net;
  Json manifest, tensors = Json::object();
};

// The digest of the line that `sha256sum model.safetensors` prints.
std::string SourceDigest(const Json& manifest) {
  const Json::json_pointer entry("/files/model.safetensors/sha256");
  if (!manifest.contains(entry) || !manifest[entry].is_string()) return "";
  const std::string text = manifest[entry].get<std::string>() + "  model.safetensors\n";
  return Sha256(std::as_bytes(std::span(text)));
}

void CheckTiles(const Network& net) {
  NIBBLE_CHECK((net.tiles == nullptr) != net.tiles_refused.empty(), "{}", net.tiles_refused);
  std::set<const std::byte*> places;
  for (const auto& [role, linear] : net.layers[0].linears) {
    const Tensor& tiles = linear.weights.tiles;
    NIBBLE_CHECK((tiles.data == nullptr) == (net.tiles == nullptr));
    if (tiles.data == nullptr) continue;
    NIBBLE_CHECK(tiles.dtype == DType::kU8 && tiles.shape == TileOrder(linear.weights).shape());
    NIBBLE_CHECK(reinterpret_cast<uintptr_t>(tiles.data) % 64 == 0 &&
                 places.insert(tiles.data).second);
  }
}

void Use(std::string_view input) {
  static Model model;
  Json tensors = model.tensors, manifest = model.manifest;
  const Json tensors_patch = ParseJson(TakeLine(&input), "tensors");
  manifest.merge_patch(ParseJson(TakeLine(&input), "manifest"));
  tensors["__metadata__"]["source_sha256"] = SourceDigest(manifest);
  tensors.merge_patch(tensors_patch);
  if (!tensors.is_object()) return;
  const size_t padding = input.empty() ? 0 : static_cast<uint8_t>(input[0]) % 65;
  const std::string file =
      ShardOf(tensors, input.substr(std::min<size_t>(input.size(), 1)), padding);
  model.directory.Write("manifest.json", manifest.dump());
  model.directory.Write(kTilesName, file);
  Network& net = model.net;
  net.tiles_refused.clear();
  AttachTiles(net);
  CheckTiles(net);
  for (const auto& [role, linear] : net.layers[0].linears) net.layers[0][role].weights.tiles = {};
  net.tiles.reset();
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
