// SPDX-License-Identifier: Apache-2.0
// One head's half of a KV page decoded to fp32, bit for bit as DequantizeKv (formats/quantizer.h):
//
//   DecodeTransposed   out [head_dim][64]      keys in lanes, for Q K^T
//   DecodeRows         out [tokens][stride]    dimensions in lanes, for P V
//
// Only the first `tokens` tokens of the page are written; lanes and columns beyond tokens and
// head_dim hold garbage. Transposing moves whole dwords of codes, and every lane then picks its
// code by a shift, which costs far less than transposing floats.
#if defined(NIBBLE_BACKENDS_CPU_KV_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_BACKENDS_CPU_KV_DECODE_INL_H_
#undef NIBBLE_BACKENDS_CPU_KV_DECODE_INL_H_
#else
#define NIBBLE_BACKENDS_CPU_KV_DECODE_INL_H_
#endif

#include <cstring>

#include "backends/cpu/attention/kv_page.h"
#include "backends/cpu/gemm/gemm_tile.inl.h"
#include "formats/quantizer.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu::HWY_NAMESPACE {
namespace {

// Eight rows of eight dwords, `stride` bytes apart, to eight columns kPageTokens apart.
HWY_INLINE void TransposeBlock(const std::byte* source, size_t stride, uint32_t* out) {
  const hn::FixedTag<uint32_t, 8> d;
  const hn::FixedTag<uint64_t, 4> d64;
  using V = hn::Vec<decltype(d)>;
  const auto row = [&](size_t i) HWY_ATTR {
    return hn::BitCast(d, hn::LoadU(hn::FixedTag<uint8_t, 32>(),
                                    reinterpret_cast<const uint8_t*>(source + i * stride)));
  };
  V columns[2][4];  // [rows 0-3 or 4-7][c]: column c in the lower half, c + 4 in the upper half
  for (size_t half = 0; half < 2; ++half) {
    const V r0 = row(4 * half), r1 = row(4 * half + 1);
    const V r2 = row(4 * half + 2), r3 = row(4 * half + 3);
    const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
    columns[half][0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
    columns[half][1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
    columns[half][2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
    columns[half][3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
  }
  for (int64_t c = 0; c < 4; ++c) {
    hn::StoreU(hn::ConcatLowerLower(d, columns[1][c], columns[0][c]), d, out + c * kPageTokens);
    hn::StoreU(hn::ConcatUpperUpper(d, columns[1][c], columns[0][c]), d,
               out + (c + 4) * kPageTokens);
  }
}

// Dwords [tokens][columns], rows `stride` bytes apart, to [columns][64].
void TransposeDwords(const std::byte* source, size_t stride, int64_t tokens, int64_t columns,
                     uint32_t* out) {
  for (int64_t t = 0; t < tokens; t += 8) {  // up to seven rows more, still inside the page
    const std::byte* rows = source + static_cast<size_t>(t) * stride;
    // The last block may take columns of the one before it again: single dwords cost more.
    for (int64_t c = 0; columns >= 8 && c < columns; c += 8) {
      const int64_t first = std::min(c, columns - 8);
      TransposeBlock(rows + first * 4, stride, out + first * kPageTokens + t);
    }
    for (int64_t c = 0; columns < 8 && c < columns; ++c) {
      for (size_t i = 0; i < 8; ++i) {
        std::memcpy(out + c * kPageTokens + t + static_cast<int64_t>(i), rows + i * stride + c * 4,
                    4);
      }
    }
  }
}

// {s, z} of all tokens to scratch.scales and scratch.zeros, [groups][64].
void DecodeParams(const KvPart& part, int64_t tokens, KvScratch& scratch) {
  const int64_t groups = part.groups();
  const auto* pairs = reinterpret_cast<const uint32_t*>(part.params);  // of one group: in order
  if (groups > 1) {
    TransposeDwords(part.params, static_cast<size_t>(groups) * 4, tokens, groups, scratch.dwords);
    pairs = scratch.dwords;
  }
  const DF d;
  const hn::Rebind<uint32_t, DF> d32;
  const hn::Rebind<uint16_t, DF> d16;
  const hn::Rebind<hwy::float16_t, DF> half;
  for (int64_t i = 0; i < groups * kPageTokens; i += kLanes) {
    const auto pair = hn::LoadU(d32, pairs + i);
    const auto scale = hn::TruncateTo(d16, hn::And(pair, hn::Set(d32, 0xFFFF)));
    const auto zero = hn::TruncateTo(d16, hn::ShiftRight<16>(pair));
    hn::StoreU(hn::PromoteTo(d, hn::BitCast(half, scale)), d, scratch.scales + i);
    hn::StoreU(hn::PromoteTo(d, hn::BitCast(half, zero)), d, scratch.zeros + i);
  }
}

// Codes of any width as bytes, rows head_dim apart: eight codes are `bits` bytes. Reads up to six
// bytes too many, which is safe since every plane of codes is followed by its params. All tokens in
// one go: reading a row back at once would wait for its narrow stores.
const uint8_t* CodeBytes(const KvPart& part, int64_t tokens, KvScratch& scratch) {
  const int bits = part.format->bits;
  if (bits == 8) return reinterpret_cast<const uint8_t*>(part.codes);
  const uint64_t mask = 0x0101010101010101u * ((1u << bits) - 1);
  uint8_t* out = scratch.bytes;
  // Rows of whole bytes follow each other without a gap.
  const std::byte* packed = part.codes;
#pragma GCC unroll 4
  for (int64_t i = 0; i < tokens * part.head_dim; i += 8, packed += bits) {
    uint64_t eight;
    std::memcpy(&eight, packed, sizeof(eight));
    eight = _pdep_u64(eight, mask);
    std::memcpy(out + i, &eight, sizeof(eight));
  }
  return out;
}

void DecodeHalfRows(const KvPart& part, int64_t tokens, int64_t stride, float* out) {
  const hn::FixedTag<uint32_t, 8> d;  // head_dim is a multiple of eight
  const auto* values = reinterpret_cast<const uint16_t*>(part.codes);
  for (int64_t t = 0; t < tokens; ++t, values += part.head_dim, out += stride) {
    for (int64_t i = 0; i < part.head_dim; i += 8) {
      const auto half = hn::LoadU(hn::FixedTag<uint16_t, 8>(), values + i);
      hn::StoreU(hn::ShiftLeft<16>(hn::PromoteTo(d, half)), d,
                 reinterpret_cast<uint32_t*>(out + i));
    }
  }
}

// Rows of codes that lie `codes_stride` bytes apart; load(row, i) gives codes i to i + kLanes - 1
// of one.
template <typename Load>
HWY_INLINE void DecodeCodeRows(const KvPart& part, int64_t tokens, int64_t stride,
                               const KvScratch& scratch, const uint8_t* codes, int64_t codes_stride,
                               const Load& load, float* out) {
  const DF d;
  const hn::Rebind<int32_t, DF> di;
  const int64_t group = part.head_dim / part.groups();
  for (int64_t t = 0; t < tokens; ++t, codes += codes_stride) {
    float* row = out + t * stride;
    for (int64_t g = 0, i = 0; i < part.head_dim; ++g) {
      const auto scale = hn::Set(d, scratch.scales[g * kPageTokens + t]);
      const auto zero = hn::Set(d, scratch.zeros[g * kPageTokens + t]);
      for (const int64_t end = i + group; i < end; i += kLanes) {
        const auto code = hn::ConvertTo(d, hn::PromoteTo(di, load(codes, i)));
        hn::StoreU(hn::Mul(scale, hn::Sub(code, zero)), d, row + i);
      }
    }
  }
}

void DecodeRows(const KvPart& part, int64_t tokens, int64_t stride, KvScratch& scratch,
                float* out) {
  if (part.format->bits == 16) return DecodeHalfRows(part, tokens, stride, out);
  if (!part.vectorized(/*group_multiple=*/16)) {
    for (int64_t t = 0; t < tokens; ++t) part.DequantizeRow(t, out + t * stride);
    return;
  }
  DecodeParams(part, tokens, scratch);
  const hn::Rebind<uint8_t, DF> d8;
  if (kLanes == 16 && part.format->bits == 4) {  // with shorter vectors, bytes are faster
    const hn::Half<decltype(d8)> pairs;
    const auto load = [&](const uint8_t* row, int64_t i) HWY_ATTR {
      const auto two = hn::ZeroExtendVector(d8, hn::LoadU(pairs, row + i / 2));
      return hn::InterleaveLower(d8, hn::And(two, hn::Set(d8, 15)), hn::ShiftRight<4>(two));
    };
    DecodeCodeRows(part, tokens, stride, scratch, reinterpret_cast<const uint8_t*>(part.codes),
                   part.row_bytes, load, out);
    return;
  }
  const auto load = [&](const uint8_t* row, int64_t i) HWY_ATTR { return hn::LoadU(d8, row + i); };
  DecodeCodeRows(part, tokens, stride, scratch, CodeBytes(part, tokens, scratch), part.head_dim,
                 load, out);
}

// Codes of kBits = 4 or 8 as dwords [head_dim * kBits / 32][64] in scratch.dwords.
template <int kBits>
void DecodeDwords(const KvPart& part, int64_t tokens, const KvScratch& scratch, float* out) {
  const DF d;
  const hn::Rebind<uint32_t, DF> d32;
  constexpr int kPerDword = 32 / kBits;
  // A code in the low mantissa bits of 2^23 is the float 2^23 + code; the difference to 2^23 + z is
  // exact.
  const auto offset = hn::Set(d32, 0x4B000000u), mask = hn::Set(d32, (1u << kBits) - 1);
  const int64_t group_dwords = part.head_dim / part.groups() / kPerDword;
  for (int64_t t = 0; t < tokens; t += kLanes) {
    const uint32_t* dwords = scratch.dwords + t;
    float* lanes = out + t;
    for (int64_t g = 0; g < part.groups(); ++g) {
      const auto scale = hn::LoadU(d, scratch.scales + g * kPageTokens + t);
      const auto zero =
          hn::Add(hn::LoadU(d, scratch.zeros + g * kPageTokens + t), hn::BitCast(d, offset));
      for (int64_t i = 0; i < group_dwords; ++i, dwords += kPageTokens) {
        const auto raw = hn::LoadU(d32, dwords);
#pragma GCC unroll 8
        for (int c = 0; c < kPerDword; ++c, lanes += kPageTokens) {
          const auto shifted = hn::ShiftRightSame(raw, c * kBits);
          const auto code = hn::BitCast(d, hn::OrAnd(offset, shifted, mask));
          hn::StoreU(hn::Mul(scale, hn::Sub(code, zero)), d, lanes);
        }
      }
    }
  }
}

// bf16 pairs as dwords [head_dim / 2][64] in scratch.dwords.
void DecodePairs(int64_t head_dim, int64_t tokens, const KvScratch& scratch, float* out) {
  const hn::Rebind<uint32_t, DF> d;
  for (int64_t i = 0; i < head_dim; i += 2) {
    const uint32_t* pairs = scratch.dwords + i / 2 * kPageTokens;
    auto* even = reinterpret_cast<uint32_t*>(out + i * kPageTokens);
    for (int64_t t = 0; t < tokens; t += kLanes) {
      const auto pair = hn::LoadU(d, pairs + t);
      hn::StoreU(hn::ShiftLeft<16>(pair), d, even + t);
      hn::StoreU(hn::And(pair, hn::Set(d, 0xFFFF0000u)), d, even + kPageTokens + t);
    }
  }
}

void DecodeTransposed(const KvPart& part, int64_t tokens, KvScratch& scratch, float* out) {
  const int64_t head_dim = part.head_dim;
  const auto row_bytes = static_cast<size_t>(part.row_bytes);
  auto* out_dwords = reinterpret_cast<uint32_t*>(out);
  if (part.format->bits == 32) {
    TransposeDwords(part.codes, row_bytes, tokens, head_dim, out_dwords);
    return;
  }
  if (part.format->bits == 16) {
    TransposeDwords(part.codes, row_bytes, tokens, head_dim / 2, scratch.dwords);
    DecodePairs(head_dim, tokens, scratch, out);
    return;
  }
  if (!part.vectorized(/*group_multiple=*/8)) {
    DecodeRows(part, tokens, kMaxHeadDim, scratch, scratch.rows);
    TransposeDwords(reinterpret_cast<const std::byte*>(scratch.rows), kMaxHeadDim * sizeof(float),
                    tokens, head_dim, out_dwords);
    return;
  }
  DecodeParams(part, tokens, scratch);
  if (part.format->bits == 4) {
    TransposeDwords(part.codes, row_bytes, tokens, head_dim / 8, scratch.dwords);
    DecodeDwords<4>(part, tokens, scratch, out);
    return;
  }
  TransposeDwords(reinterpret_cast<const std::byte*>(CodeBytes(part, tokens, scratch)),
                  static_cast<size_t>(head_dim), tokens, head_dim / 4, scratch.dwords);
  DecodeDwords<8>(part, tokens, scratch, out);
}

}  // namespace
}  // namespace nibble::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
