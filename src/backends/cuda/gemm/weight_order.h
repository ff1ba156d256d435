// SPDX-License-Identifier: Apache-2.0
// Quantized weights in the order in which the integer kernels of a GPU read them: as operand A of
// the tensor cores, straight into registers. One copy serves prefill and decode. Codes of any width
// up to 8 become signed codes of 4 or 8 bits; codewords of a lattice stay codes.
//
//   [N / 64][K / 128] blocks of 64 outputs x 128 inputs; codes behind the last output or input are
//   0
//
// Thread t of 128 in a block (warp = t / 32, lane = t % 32) owns 16 fragment registers of four
// bytes. Register q, with s = q / 4, u = q / 2 % 2, h = q % 2, holds four consecutive inputs:
//
//   output 16 warp + lane / 4 + 8 h,   inputs 32 s + 16 u + 4 (lane % 4) .. + 3
//
//   8 bits      8192 bytes, register q at 2048 (q / 4) + 16 t + 4 (q % 4)
//   4 bits      4096 bytes, word r at 2048 (r / 4) + 16 t + 4 (r % 4): the low nibbles are register
//               2 r, the high nibbles register 2 r + 1
//
//   codewords   2048 bytes: at 16 t + 4 s + 2 h the upper two bytes of the code of inputs
//               32 s + 8 (lane % 4) .. + 7, output as above. Behind them, of 4 bits the lower two
//               likewise, of 3 bits the lowest at 8 t + 2 s + h.
//
//   sparse      registers q < 8 of the 64 codes that a row stores, as above. Behind them, at 8 t +
//               4 s, the places of inputs 64 s + 32 (lane / 2 % 2) and further, output 16 warp +
//               lane / 4 + 8 (lane % 2)
//
// Weights in groups have BlockScales behind the codes of a block, of its pieces of equal length:
//
//   kLevels         steps (LevelStep), codes are unsigned code + 8
//   kNibbleGroups   scales in fp16, and zeros as starts, bytes 120 - zero: then unsigned codes, too
//   kByteGroups     scales
//
// For piece i, the steps or scales of thread t's outputs with h = 0 and 1 are two 16-bit numbers at
// byte t / 4 * 4 pieces + 4 i; the starts lie behind all of these, two bytes at max(4, 2 pieces) (t
// / 4) + 2 i.
#pragma once

#include "backends/cuda/gemm/gemm.h"
#include "formats/packed_linear.h"

namespace nibble::cuda {

inline constexpr int64_t kBlockOutputs = 64, kBlockInputs = 128;

struct WeightOrder {
  // Blocks of `kind`, whose pieces, where they have scales, are of `piece` inputs.
  WeightOrder(const PackedWeights& weights, WeightKind kind, int piece = kBlockInputs);

  int64_t output_blocks, input_blocks;
  WeightKind kind;
  BlockScales scales;

  int bits() const { return CodeBits(kind); }
  int64_t block_bytes() const { return CodeBytes(kind) + scales.bytes(); }
  int64_t bytes() const { return output_blocks * input_blocks * block_bytes(); }
};

// Reorders the codes into `ordered`, order.bytes() of them. Throws where a zero is none of a code.
void OrderWeights(const PackedWeights& weights, const WeightOrder& order, uint8_t* ordered);

}  // namespace nibble::cuda
