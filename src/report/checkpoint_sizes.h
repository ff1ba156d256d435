// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/network.h"

namespace nibble {

// All linears of one kind, or a table, of a checkpoint.
struct RoleSize {
  std::string role;  // "q", .., "embedding"; "head, embedding" where they share
  std::vector<std::string> weights, activations;  // formats, each once, in the order of layers
  double count = 0, bytes = 0;  // weights; bytes of their codes, scales and orders

  double bits() const { return count > 0 ? 8 * bytes / count : 0; }  // of a weight
};
// In the order in which a token meets them, tables last.
std::vector<RoleSize> SizesByRole(const Network& checkpoint);

// Throws (usage), naming `checkpoint`, unless it is a Nibble checkpoint of a network with the shape
// of `source`.
void RequireCheckpointOf(const Network& source, const Network& checkpoint);

}  // namespace nibble
