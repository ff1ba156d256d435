// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "apps/cli/cli.h"
#include "base/progress.h"
#include "models/checkpoint/tile_plane.h"
#include "models/import/open_network.h"

namespace nibble::cli {
namespace {

void RunRepack(const std::string& directory, const Common& common) {
  const Network net = OpenNetwork(directory);
  if (!net.packed)
    FailUsage("{} is not quantized: nibble quantize {} -o OUT", directory, directory);
  const uint64_t bytes = WriteTiles(net);
  if (common.json) {
    PrintJson({{"file", kTilesName}, {"bytes", bytes}});
  } else {
    fmt::print("{}/{}  {}\n", directory, kTilesName, BytesText(static_cast<double>(bytes)));
  }
}

}  // namespace

void AddRepack(CLI::App& app, Common& common, Run& run) {
  const auto directory = std::make_shared<std::string>();
  CLI::App* verb =
      AddVerb(app, common, "repack",
              "Store the weights once more in the CPU's order, so that loading only maps them",
              "nibble repack llama-w4a4kv4");
  verb->add_option("checkpoint", *directory, "Nibble checkpoint")->required();
  verb->callback([directory, &common, &run] {
    run = [directory, &common] { RunRepack(*directory, common); };
  });
}

}  // namespace nibble::cli
