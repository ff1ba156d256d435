// SPDX-License-Identifier: Apache-2.0
// Weights on their way to a kernel: bytes of nibbles, of two levels, of a lattice.
#include <algorithm>

#include "backends/cpu/common/dispatch.h"
#include "backends/cpu/gemm/int_kernels.h"
#include "backends/cpu/gemm/tile_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/gemm/tile_unpack.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "backends/cpu/common/lanes.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

template <bool kFloats>
void UnpackOf(const uint8_t* nibbles, int64_t inputs, uint8_t* bytes) {
  const hn::CappedTag<uint8_t, 64> d;
  const auto mask = hn::Set(d, 15), table = hn::LoadDup128(d, kFloatBytes);
  const int64_t lanes = hn::Lanes(d);
  const auto store = [&](hn::Vec<decltype(d)> codes, uint8_t* out) HWY_ATTR {
    hn::StoreU(kFloats ? hn::TableLookupBytes(table, codes) : codes, d, out);
  };
  for (int64_t i = 0; i < inputs / 8; ++i) {
    for (int64_t j = 0; j < 64; j += lanes) {
      const auto pair = hn::LoadU(d, nibbles + i * 64 + j);
      store(hn::And(pair, mask), bytes + i * 128 + j);
      store(hn::And(hn::ShiftRight<4>(pair), mask), bytes + i * 128 + 64 + j);
    }
  }
}

void Unpack(const uint8_t* nibbles, int64_t inputs, bool floats, uint8_t* bytes) {
  floats ? UnpackOf<true>(nibbles, inputs, bytes) : UnpackOf<false>(nibbles, inputs, bytes);
}

// Lines of eight inputs whose outputs keep their steps. Scale and start fill the two pairs of bytes
// of an output; a nibble times the scale is below 256, so pairs are multiplied at once.
void UnpackGroup(const uint8_t* nibbles, int64_t lines, const uint16_t* steps, uint8_t* bytes) {
  const hn::CappedTag<uint8_t, 64> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const hn::Rebind<uint16_t, decltype(d32)> d_steps;
  const auto mask = hn::Set(d, 15);
  const int64_t lanes = hn::Lanes(d);
  for (int64_t j = 0; j < 64; j += lanes) {
    const auto step = hn::PromoteTo(d32, hn::LoadU(d_steps, steps + j / 4));
    const auto low = hn::And(step, hn::Set(d32, 255));
    const auto scale = hn::BitCast(d16, hn::Or(low, hn::ShiftLeft<16>(low)));
    const auto start = hn::BitCast(d, hn::Mul(hn::ShiftRight<8>(step), hn::Set(d32, 0x01010101u)));
    const auto store = [&](hn::Vec<decltype(d)> codes, uint8_t* out) HWY_ATTR {
      const auto product = hn::BitCast(d, hn::Mul(hn::BitCast(d16, codes), scale));
      hn::StoreU(hn::Add(product, start), d, out);
    };
    for (int64_t i = 0; i < lines; ++i) {
      const auto pair = hn::LoadU(d, nibbles + i * 64 + j);
      store(hn::And(pair, mask), bytes + i * 128 + j);
      store(hn::And(hn::ShiftRight<4>(pair), mask), bytes + i * 128 + 64 + j);
    }
  }
}

void UnpackSteps(const uint8_t* nibbles, int64_t first, int64_t inputs, const uint16_t* steps,
                 int64_t step_cols, uint8_t* bytes) {
  while (inputs > 0) {
    const int64_t count = std::min(inputs, step_cols - first % step_cols);
    UnpackGroup(nibbles, count / 8, steps + first / step_cols * kPanel, bytes);
    nibbles += count * 8;
    bytes += count * kPanel;
    first += count;
    inputs -= count;
  }
}

// The low or upper halves of words of codewords.
HWY_INLINE VI Halves(VI words, bool upper) {
  return hn::And(upper ? hn::ShiftRight<4>(words) : words, hn::Set(DI(), 0x0F0F0F0F));
}

// Blocks of 32 inputs.
template <int kBits>
void UnpackCodewordsOf(const uint8_t* codes, int64_t inputs, uint8_t* bytes) {
  const DI d;
  const LatticeWords& table = LatticeCode::Words();
  alignas(64) uint32_t words[2][4 * kPanel];
  for (int64_t k = 0; k < inputs; k += 32, codes += kBits * 4 * kPanel) {
    e8p_words(table, codes + (kBits - 2) * 4 * kPanel, words[0]);
    if (kBits == 3) short_words(table, codes, words[1]);
    if (kBits == 4) e8p_words(table, codes, words[1]);
    for (int64_t code = 0; code < 4; ++code) {
      for (const bool upper : {false, true}) {
        for (int64_t j = 0; j < kPanel; j += kLanes) {
          const auto numbers = [&](const uint32_t* of) HWY_ATTR {
            const auto* at = reinterpret_cast<const int32_t*>(of) + code * kPanel + j;
            return Halves(hn::LoadU(d, at), upper);
          };
          VI values = hn::ShiftLeft < kBits == 4 ? 3 : 1 > (numbers(words[0]));
          if constexpr (kBits == 3) values = hn::Add(values, numbers(words[1]));
          if constexpr (kBits == 4) {
            values = hn::Add(values, hn::ShiftLeft<1>(numbers(words[1])));
          }
          hn::StoreU(values, d, reinterpret_cast<int32_t*>(bytes) + j);
        }
        bytes += 4 * kPanel;
      }
    }
  }
}

void UnpackAnyCodewords(const uint8_t* codes, int64_t inputs, int bits, uint8_t* bytes) {
  if (bits == 2) return UnpackCodewordsOf<2>(codes, inputs, bytes);
  bits == 3 ? UnpackCodewordsOf<3>(codes, inputs, bytes)
            : UnpackCodewordsOf<4>(codes, inputs, bytes);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::cpu {
HWY_EXPORT(Unpack);
HWY_EXPORT(UnpackSteps);
HWY_EXPORT(UnpackAnyCodewords);

void UnpackNibbles(Isa isa, const uint8_t* nibbles, int64_t inputs, bool floats, uint8_t* bytes) {
  NIBBLE_DISPATCH(isa, Unpack)(nibbles, inputs, floats, bytes);
}

void UnpackLevels(Isa isa, const uint8_t* nibbles, int64_t first, int64_t inputs,
                  const uint16_t* steps, int64_t step_cols, uint8_t* bytes) {
  NIBBLE_DISPATCH(isa, UnpackSteps)(nibbles, first, inputs, steps, step_cols, bytes);
}

void UnpackCodewords(Isa isa, const uint8_t* codes, int64_t inputs, int bits, uint8_t* bytes) {
  NIBBLE_DISPATCH(isa, UnpackAnyCodewords)(codes, inputs, bits, bytes);
}

}  // namespace nibble::cpu
#endif  // HWY_ONCE
