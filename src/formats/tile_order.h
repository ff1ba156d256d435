// SPDX-License-Identifier: Apache-2.0
// Quantized weights in the order in which a CPU's integer kernels read them, in panels of 16
// outputs. Codes are widened to 4 or 8 bits and unsigned (code + 8 or + 128; of E2M1 its bits, sign
// flipped), or those of a lattice. The order depends on shape and width alone: a checkpoint can
// carry it.
//
//   8 bits      [panel][k / 4][16 outputs][4 bytes], inputs k..k+3
//   4 bits      [panel][k / 8][16 outputs][4 bytes], low nibbles = inputs k..k+3, high = k+4..k+7
//   codewords   [panel][k / 32][byte of a code][16 outputs][4 codes], each for eight inputs
//
// Outputs are padded to a multiple of 32 and inputs to a multiple of 64, with code 0.
#pragma once

#include "formats/packed_linear.h"

namespace nibble {

struct TileOrder {
  explicit TileOrder(const PackedWeights& weights);

  int64_t panels;       // even
  int64_t padded_cols;  // a multiple of 64
  int bits;             // 4 or 8; of a lattice 2, 3 or 4

  int64_t panel_bytes() const { return padded_cols * 16 * bits / 8; }
  int64_t bytes() const { return panels * panel_bytes(); }
  // [panel, lines, 64 bytes]
  std::vector<int64_t> shape() const { return {panels, panel_bytes() / 64, 64}; }
};

// Reorders the codes into `tiles`, TileOrder(weights).bytes() of them.
void PackTiles(const PackedWeights& weights, uint8_t* tiles);

}  // namespace nibble
