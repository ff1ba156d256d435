// SPDX-License-Identifier: Apache-2.0
// A format describes how numbers are rounded, be they weights, activations or cache entries.
// A group is a run of consecutive inputs (weights: along K) that share a scale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace nibble {

// The codebook says what the bits of a weight stand for, where that is no integer.
enum class Codebook {
  kNone,
  kE8p,   // 2 to 4 bits by rows: 8 weights at a time are a codeword of QuIP#'s lattices
          // (lattice_codes.h)
  kE2m1,  // 4 bits: a float (tensor/e2m1.h)
  // By rows, for comparison alone (QuIP#'s ablation; quantize/round/weight_code.h): weights become
  // codewords, and what these mean is stored in fp16.
  kHalfInteger,  // 2 to 4 bits: 1/2, 3/2, .. and their negatives
  kKmeans,       // 2 bits: 8 weights a codeword that K-means found for normal numbers
  kE8,           // 1 bit: 8 weights one of the 256 shortest vectors of E8
};
inline constexpr std::string_view kCodebookNames[] = {"none",   "e8p", "e2m1", "half-integer",
                                                      "kmeans", "e8"};  // in that order

// The bits of a codebook that exists with these alone; 0: the others.
constexpr int OnlyBits(Codebook codebook) {
  return codebook == Codebook::kE2m1     ? 4
         : codebook == Codebook::kKmeans ? 2
         : codebook == Codebook::kE8     ? 1
                                         : 0;
}

struct FormatSpec {
  // 2..8, of one codebook 1. Not quantized: 16 = bf16 (weights: fp16 where the source has it), 32 =
  // fp32; a CPU's products take fp32 for both.
  int bits = 16;
  bool symmetric = true;  // false: an integer zero point (weights, cache) or a real offset (acts)
  int64_t group = 0;      // 0 = the whole row (weights, activations) or head (cache)
  // The range is multiplied by clip before the scale is taken. 0: searched; per scale with the
  // 2.4-norm of the error (weights), or per linear on calibration data (activations of a recipe; a
  // plan has the clip that was found).
  double clip = 1.0;
  bool squared_clips = false;  // weights, clip 0: the 2-norm of the error instead
  // Symmetric activations: the scale has the sign that puts the element of largest magnitude on the
  // lowest code, which a positive scale leaves unused.
  bool signed_scale = false;
  // Weights in groups of at most 4 bits: the scale of a group is an integer times that of its row,
  // so that the codes are worth bytes of the row (QServe, Lin et al. 2024; packed_linear.h).
  bool second_level = false;
  // Weights: of every 4 consecutive columns 2 are 0 and not stored (2:4).
  bool sparse = false;
  Codebook codebook = Codebook::kNone;  // of weights

  bool quantized() const { return bits < 16; }
  // Weights whose columns are rounded and stored together, 4 or 8 of them, in their own order.
  bool in_blocks() const { return sparse || (codewords() && codebook != Codebook::kHalfInteger); }
  bool lattice() const { return codebook == Codebook::kE8p; }
  bool e2m1() const { return codebook == Codebook::kE2m1; }
  // Weights that become codewords, with a scale for each row.
  bool codewords() const { return codebook != Codebook::kNone && !e2m1(); }
  // What is stored are no codes but the numbers that they mean.
  bool compared() const { return codewords() && !lattice(); }
  FormatSpec as_stored() const { return compared() ? FormatSpec{.bits = 16} : *this; }
  // The bits of the integers that codes stand for.
  int code_bits() const { return lattice() ? 8 : e2m1() ? 5 : bits; }
  // Number of groups in a row of `width` elements; group must divide width.
  int64_t groups(int64_t width) const { return group == 0 ? 1 : width / group; }
  // The number of codes that are stored for a row of `width` weights.
  int64_t stored(int64_t width) const { return sparse ? width / 2 : width; }
  // Floating-point scales of a row of weights: one in fp32, or one in fp16 for each group.
  bool row_scales() const { return group == 0 || second_level; }
  int64_t scales(int64_t width) const { return row_scales() ? 1 : groups(width); }
  bool operator==(const FormatSpec&) const = default;
};

// "4", "4 asym g128", "4 g128 two-level", "4 2:4", "4 g32 e2m1", "2 kmeans in 16", "16".
std::string FormatText(const FormatSpec& spec);

Json ToJson(const FormatSpec& spec);
// Refuses unknown fields, bits other than 2..8, 16 and 32, groups that are negative, clips outside
// 0..1, a second level without groups or with more than 4 bits, sparse numbers that are not
// quantized, a codebook of other bits than it has.
FormatSpec FormatFromJson(const Json& json, const std::string& where);

// Bytes of one packed row of `count` codes: code i occupies bits [i*bits, (i+1)*bits) of a
// little-endian bit stream, so with 4 bits the low nibble is the even index.
inline int64_t PackedBytes(int64_t count, int bits) {
  return (count * bits + 7) / 8;
}

// Writes `count` codes (only their low `bits` bits count) and the zero bits that fill the last
// byte.
void PackCodes(const int8_t* codes, int64_t count, int bits, uint8_t* packed);
// Codes as two's complement (sign_extend) or as 0..2^bits-1.
void UnpackCodes(const uint8_t* packed, int64_t count, int bits, bool sign_extend, int16_t* codes);

}  // namespace nibble
