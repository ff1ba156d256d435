// SPDX-License-Identifier: Apache-2.0
// The tile plane (docs/checkpoint_format.md): one more file of a checkpoint, with its integer
// weights in the CPU's order (formats/tile_order.h). The CPU maps it instead of reordering the
// canonical planes. It can be deleted and made again, and one that does not belong to the shards is
// not used.
#pragma once

#include <string>

#include "models/network.h"

namespace nibble {

inline constexpr const char* kTilesName = "cpu-tiles.safetensors";

// Maps the plane in net.directory and points the linears to it (PackedWeights::tiles). If there is
// one that cannot be used, net.tiles_refused says why; content is compared with the manifest by
// VerifyManifest alone.
void AttachTiles(Network& net);

// Writes the plane and enters it in the manifest. Throws if a shard differs from the manifest,
// because a plane of damaged weights would look sound. Returns the bytes of the file.
uint64_t WriteTiles(const Network& net);

}  // namespace nibble
