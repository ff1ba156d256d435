// SPDX-License-Identifier: Apache-2.0
#include "tensor/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "tensor/e2m1.h"

namespace nibble {
namespace {

uint8_t Byte(const std::byte* at) {
  return std::to_integer<uint8_t>(*at);
}

float Half(const std::byte* at) {
  return F32FromF16(static_cast<uint16_t>(Byte(at) | Byte(at + 1) << 8));
}

// Nibble e of 32: the low halves of 16 bytes, then the high ones.
int Nibble(const std::byte* bytes, int e) {
  return Byte(bytes + e % 16) >> (e / 16 * 4) & 15;
}

// Nibble e with a fifth bit on top, which is bit e of the four bytes `fifth`.
int FiveBits(const std::byte* fifth, const std::byte* bytes, int e) {
  return Nibble(bytes, e) | (Byte(fifth + e / 8) >> e % 8 & 1) << 4;
}

// d, 32 int8
void DecodeQ8_0(const std::byte* block, float* values) {
  const float d = Half(block);
  for (int e = 0; e < 32; ++e) values[e] = d * static_cast<int8_t>(Byte(block + 2 + e));
}

// d, nibbles
void DecodeQ4_0(const std::byte* block, float* values) {
  const float d = Half(block);
  for (int e = 0; e < 32; ++e) values[e] = d * static_cast<float>(Nibble(block + 2, e) - 8);
}

// d, m, nibbles
void DecodeQ4_1(const std::byte* block, float* values) {
  const float d = Half(block), m = Half(block + 2);
  for (int e = 0; e < 32; ++e) values[e] = d * static_cast<float>(Nibble(block + 4, e)) + m;
}

// d, fifth bits, nibbles
void DecodeQ5_0(const std::byte* block, float* values) {
  const float d = Half(block);
  for (int e = 0; e < 32; ++e) {
    values[e] = d * static_cast<float>(FiveBits(block + 2, block + 6, e) - 16);
  }
}

// d, m, fifth bits, nibbles
void DecodeQ5_1(const std::byte* block, float* values) {
  const float d = Half(block), m = Half(block + 2);
  for (int e = 0; e < 32; ++e) {
    values[e] = d * static_cast<float>(FiveBits(block + 4, block + 8, e)) + m;
  }
}

struct Affine {
  float scale, min;
};

// Scale and minimum of sub-block j of 8, six bits each in 12 bytes behind d and dmin.
Affine SubBlock(const std::byte* block, int j) {
  const std::byte* s = block + 4;
  int scale = Byte(s + j), min = Byte(s + j + 4);
  if (j < 4) {
    scale &= 63, min &= 63;
  } else {
    const int both = min;  // low halves of both
    scale = (both & 15) | Byte(s + j - 4) >> 6 << 4;
    min = both >> 4 | Byte(s + j) >> 6 << 4;
  }
  return {Half(block) * static_cast<float>(scale), Half(block + 2) * static_cast<float>(min)};
}

// d, dmin, scales, 128 bytes: sub-block 2i in the low halves of bytes 32i to 32i + 31, 2i + 1 in
// the high ones. Q5_K: before them 32 bytes, of which bit j of byte l is the fifth bit.
template <bool kFifth>
void DecodeQ45K(const std::byte* block, float* values) {
  const std::byte* fifth = block + 16;
  const std::byte* low = block + (kFifth ? 48 : 16);
  for (int j = 0; j < 8; ++j) {
    const Affine a = SubBlock(block, j);
    for (int l = 0; l < 32; ++l) {
      int q = Byte(low + 32 * (j / 2) + l) >> (j % 2 * 4) & 15;
      if (kFifth) q |= (Byte(fifth + l) >> j & 1) << 4;
      values[32 * j + l] = a.scale * static_cast<float>(q) - a.min;
    }
  }
}

// 128 bytes of low halves, 64 of upper two bits, 16 int8 scales, d
void DecodeQ6K(const std::byte* block, float* values) {
  const float d = Half(block + 208);
  for (int e = 0; e < 256; ++e) {
    const int n = e / 128, k = e % 128 / 32, l = e % 32;
    const int low = Byte(block + 64 * n + 32 * (k % 2) + l) >> (k / 2 * 4) & 15;
    const int high = Byte(block + 128 + 32 * n + l) >> (2 * k) & 3;
    const auto scale = static_cast<int8_t>(Byte(block + 192 + e / 16));
    values[e] = d * scale * static_cast<float>((low | high << 4) - 32);
  }
}

// A power of two (E8M0), nibbles that index E2M1 (OCP Microscaling Formats 1.0)
void DecodeMxfp4(const std::byte* block, float* values) {
  const float scale = std::ldexp(1.0f, Byte(block) - 127);
  for (int e = 0; e < 32; ++e) {
    values[e] = scale * (0.5f * kE2m1Codes[static_cast<size_t>(Nibble(block + 1, e))]);
  }
}

constexpr BlockType kBlockTypes[] = {
    {DType::kQ4_0, "Q4_0", 32, 18, DecodeQ4_0},
    {DType::kQ4_1, "Q4_1", 32, 20, DecodeQ4_1},
    {DType::kQ5_0, "Q5_0", 32, 22, DecodeQ5_0},
    {DType::kQ5_1, "Q5_1", 32, 24, DecodeQ5_1},
    {DType::kQ8_0, "Q8_0", 32, 34, DecodeQ8_0},
    {DType::kQ4K, "Q4_K", 256, 144, DecodeQ45K<false>},
    {DType::kQ5K, "Q5_K", 256, 176, DecodeQ45K<true>},
    {DType::kQ6K, "Q6_K", 256, 210, DecodeQ6K},
    {DType::kMxfp4, "MXFP4", 32, 17, DecodeMxfp4},
};

}  // namespace

const BlockType* BlockTypeOf(DType dtype) {
  const auto type = std::ranges::find(kBlockTypes, dtype, &BlockType::dtype);
  return type == std::end(kBlockTypes) ? nullptr : &*type;
}

}  // namespace nibble
