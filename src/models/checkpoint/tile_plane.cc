// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/tile_plane.h"

#include <filesystem>
#include <set>

#include "formats/tile_order.h"
#include "io/sha256.h"
#include "models/checkpoint/manifest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOrderKey = "tile_order";
constexpr const char* kOrder = "cpu-1";  // a change of formats/tile_order.h needs another name
constexpr const char* kSourceKey = "source_sha256";
constexpr uintptr_t kAlignment = 64;  // of vector loads

std::string TilesPath(const Network& net) {
  return (fs::path(net.directory) / kTilesName).string();
}

// visit(name of the tensor, weights) for every linear that is multiplied in integers.
template <typename AnyNetwork, typename Visit>
void ForEachIntegerLinear(AnyNetwork& net, Visit&& visit) {
  const auto each = [&](int64_t layer, Role role, auto& linear) {
    const InputSpec& input = linear.input;
    if (linear.weights.format.quantized() && input.activations.quantized()) {
      visit(LinearName(layer, role) + ".tiles", linear.weights);
    }
    if (linear.tail.format.quantized() && input.tail_activations.quantized()) {
      visit(LinearName(layer, role) + ".tail.tiles", linear.tail);
    }
  };
  for (size_t i = 0; i < net.layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    for (Role role : net.config.layer_roles(layer)) each(layer, role, net.layers[i][role]);
  }
  each(0, Role::kHead, net.head);
}

std::set<std::string> ShardNames(const Network& net) {
  std::set<std::string> names;
  for (const SafetensorsFile& file : net.store->files()) {
    names.insert(fs::path(file.path()).filename().string());
  }
  return names;
}

// The digest of what sha256sum prints for the shards in the order of their names.
std::string SourceDigest(const Network& net, const Manifest& manifest) {
  std::string text;
  for (const std::string& name : ShardNames(net)) {
    const auto shard = manifest.find(name);
    if (shard == manifest.end()) Fail("{}/manifest.json: no entry for {}", net.directory, name);
    text += fmt::format("{}  {}\n", shard->second.sha256, name);
  }
  return Sha256Text(text);
}

void RequireMetadata(const SafetensorsFile& file, const char* key, const std::string& expected,
                     const char* otherwise) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end() || it->second != expected) Fail("{}: {}", file.path(), otherwise);
}

// The tiles of one linear. The canonical codes have been checked, so no size here can overflow.
Tensor CheckedTiles(const SafetensorsFile& file, const std::string& name,
                    const PackedWeights& weights) {
  const auto tensor = file.tensors().find(name);
  if (tensor == file.tensors().end()) Fail("{}: tensor {} is missing", file.path(), name);
  const Tensor& view = tensor->second;
  const TileOrder order(weights);
  if (view.dtype != DType::kU8 || view.shape != order.shape()) {
    Fail("{}: tensor {} is {} {}, expected U8 {}", file.path(), name, DTypeName(view.dtype),
         ShapeText(view.shape), ShapeText(order.shape()));
  }
  if (reinterpret_cast<uintptr_t>(view.data) % kAlignment != 0) {
    Fail("{}: tensor {} does not lie at a multiple of {} bytes", file.path(), name, kAlignment);
  }
  return view;
}

SafetensorsFile OpenTiles(const Network& net) {
  SafetensorsFile file(PathInside(net.directory, kTilesName));
  RequireMetadata(file, kOrderKey, kOrder, "another tile order than this build's");
  RequireMetadata(file, kSourceKey, SourceDigest(net, ReadManifest(net.directory)),
                  "made from other weights");
  size_t linears = 0;
  ForEachIntegerLinear(net, [&](const std::string& name, const PackedWeights& weights) {
    CheckedTiles(file, name, weights);
    ++linears;
  });
  if (linears != file.tensors().size()) Fail("{}: it has unknown tensors", file.path());
  return file;
}

}  // namespace

void AttachTiles(Network& net) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(TilesPath(net), ignored))) return;
  try {
    net.tiles = std::make_unique<SafetensorsFile>(OpenTiles(net));
  } catch (const Error& error) {
    net.tiles_refused = error.what();
    return;
  }
  ForEachIntegerLinear(net, [&](const std::string& name, PackedWeights& weights) {
    weights.tiles = net.tiles->tensors().at(name);
  });
}

uint64_t WriteTiles(const Network& net) {
  Manifest manifest = ReadManifest(net.directory);
  for (const std::string& shard : ShardNames(net)) VerifyFile(net.directory, manifest, shard);
  std::vector<SafetensorsWriter::Entry> entries;
  ForEachIntegerLinear(net, [&](const std::string& name, const PackedWeights& weights) {
    entries.push_back({name, DType::kU8, TileOrder(weights).shape()});
  });
  if (entries.empty()) {
    Fail("{}: no linear has both weights and activations in integers; there is nothing to reorder",
         net.directory);
  }
  // Every tensor is a multiple of 64 bytes, so all of them are aligned.
  SafetensorsWriter writer(TilesPath(net), entries,
                           {{kOrderKey, kOrder}, {kSourceKey, SourceDigest(net, manifest)}});
  std::vector<uint8_t> tiles;
  ForEachIntegerLinear(net, [&](const std::string&, const PackedWeights& weights) {
    tiles.resize(static_cast<size_t>(TileOrder(weights).bytes()));
    PackTiles(weights, tiles.data());
    writer.Append(std::as_bytes(std::span(tiles)));
    net.store->DropPages();
  });
  writer.Finish();
  manifest[kTilesName] = DigestFile(TilesPath(net));
  WriteManifest(net.directory, manifest);
  return manifest[kTilesName].bytes;
}

}  // namespace nibble
