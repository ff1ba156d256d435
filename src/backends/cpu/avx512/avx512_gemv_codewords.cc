// SPDX-License-Identifier: Apache-2.0
// One panel of lattice codes at a time against up to twelve tokens, with VBMI and BITALG. E8P's 256
// entries are eight registers of steps: four lookups decode 64 codes, a block of 32 inputs, to two
// bits a weight. Last signs and complements of negative ones are made for a block, the rest line by
// line.
#include <immintrin.h>

#include "backends/cpu/gemm/int_kernels.h"
#include "backends/cpu/gemm/prefetch.inl.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kBlock = 32;  // inputs
constexpr int kPlane = 64;      // bytes: one of each code of a block

// Bit positions for vpmultishiftqb: byte i of output j's four takes the eight bits from `first` +
// `apart` * i on of its word.
struct Shifts {
  alignas(64) uint8_t at[64];
  constexpr Shifts(int first, int apart) : at{} {
    for (int b = 0; b < 64; ++b) {
      at[b] = static_cast<uint8_t>((b / 4 % 2 * 32 + first + apart * (b % 4) + 64) % 64);
    }
  }
};
// Shifts for each of the four codes of a word: they move steps to bits 2 and 3, signs (of weights 0
// to 3 and 4 to 7) to bit 4 and the quarter to bit 1.
constexpr Shifts kSteps[4] = {{-2, 2}, {6, 2}, {14, 2}, {22, 2}};
constexpr Shifts kSigns[4][2] = {
    {{-4, 1}, {0, 1}}, {{4, 1}, {8, 1}}, {{12, 1}, {16, 1}}, {{20, 1}, {24, 1}}};
constexpr Shifts kQuarters[4] = {{6, 0}, {14, 0}, {22, 0}, {30, 0}};

__m512i Shift(const Shifts& shifts, __m512i words) {
  return _mm512_multishift_epi64_epi8(_mm512_load_si512(shifts.at), words);
}

__m512i Bytes(int value) {
  return _mm512_set1_epi8(static_cast<char>(value));
}

// mask ? a : b, bit by bit.
__m512i Select(__m512i mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi64(mask, a, b, 0xCA);
}

// The steps of all entries, for weights 0 to 3 and 4 to 7.
class StepTable {
 public:
  explicit StepTable(const LatticeWords& words) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) rows_[i] = _mm512_loadu_si512(words.steps[i / 4] + i % 4 * 64);
  }
  __m512i Of(__m512i entries, int half) const {
    const __m512i* t = rows_ + 4 * half;
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(entries),
                                  _mm512_permutex2var_epi8(t[0], entries, t[1]),
                                  _mm512_permutex2var_epi8(t[2], entries, t[3]));
  }

 private:
  __m512i rows_[8];
};

// The 64 E8P codes of a block; Lines gives twice their numbers n (LatticeWords) line by line.
class E8pBlock {
 public:
  inline __attribute__((always_inline)) E8pBlock(const StepTable& table, const uint8_t* planes)
      : low_bytes_(_mm512_loadu_si512(planes)) {
    const __m512i entries = _mm512_loadu_si512(planes + kPlane);
    steps_[0] = table.Of(entries, 0);
    steps_[1] = table.Of(entries, 1);
    // Minus signs and odd numbers of steps together are even in number.
    const __m512i odd = _mm512_and_si512(_mm512_xor_si512(steps_[0], steps_[1]), Bytes(0x55));
    const __m512i seven = _mm512_and_si512(low_bytes_, Bytes(0x7F));
    const __m512i last = _mm512_slli_epi16(_mm512_popcnt_epi8(_mm512_xor_si512(odd, seven)), 7);
    const __m512i signs = Select(Bytes(0x7F), seven, last);
    plus_ = _mm512_xor_si512(signs, Bytes(0xFF));
    // A table that repeats each of four bits twice.
    const __m512i twice = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0x00, 0x03, 0x0C, 0x0F, 0x30, 0x33, 0x3C, 0x3F, static_cast<char>(0xC0),
                      static_cast<char>(0xC3), static_cast<char>(0xCC), static_cast<char>(0xCF),
                      static_cast<char>(0xF0), static_cast<char>(0xF3), static_cast<char>(0xFC),
                      static_cast<char>(0xFF)));
    const __m512i low = _mm512_and_si512(signs, Bytes(15));
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(signs, 4), Bytes(15));
    steps_[0] = _mm512_xor_si512(steps_[0], _mm512_shuffle_epi8(twice, low));
    steps_[1] = _mm512_xor_si512(steps_[1], _mm512_shuffle_epi8(twice, high));
  }
  inline __attribute__((always_inline)) void Lines(int code, __m512i* lines) const {
    const __m512i quarter = _mm512_and_si512(Shift(kQuarters[code], low_bytes_), Bytes(2));
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i steps = Shift(kSteps[code], steps_[half]);
      const __m512i line = Select(Bytes(16), Shift(kSigns[code][half], plus_), steps);
      lines[half] = Select(Bytes(0x1C), line, quarter);
    }
  }

 private:
  __m512i low_bytes_, steps_[2], plus_;
};

// Codes of 2, 3 and 4 bits: LatticeCode::offset() plus the codewords.
template <int kBits>
struct Block {
  inline __attribute__((always_inline))
  Block(const StepTable& table, const LatticeWords&, const uint8_t* b)
      : first(table, b) {}
  inline __attribute__((always_inline)) void Lines(int code, __m512i* lines) const {
    first.Lines(code, lines);
  }

  const E8pBlock first;
};

template <>
struct Block<3> {
  inline __attribute__((always_inline))
  Block(const StepTable& table, const LatticeWords& all, const uint8_t* b)
      : first(table, b + kPlane) {
    short_words(all, b, shorts);
  }
  inline __attribute__((always_inline)) void Lines(int code, __m512i* lines) const {
    const __m512i pairs = _mm512_load_si512(shorts + 16 * code);
    first.Lines(code, lines);
    lines[0] = _mm512_add_epi8(lines[0], _mm512_and_si512(pairs, Bytes(15)));
    lines[1] = _mm512_add_epi8(lines[1], _mm512_and_si512(_mm512_srli_epi16(pairs, 4), Bytes(15)));
  }

  alignas(64) uint32_t shorts[64];
  const E8pBlock first;
};

template <>
struct Block<4> {
  inline __attribute__((always_inline))
  Block(const StepTable& table, const LatticeWords&, const uint8_t* b)
      : second(table, b), first(table, b + 2 * kPlane) {}
  inline __attribute__((always_inline)) void Lines(int code, __m512i* lines) const {
    __m512i more[2];
    first.Lines(code, lines);
    second.Lines(code, more);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {  // bytes stay below 128 when moved
      lines[half] = _mm512_add_epi8(_mm512_slli_epi16(lines[half], 2), more[half]);
    }
  }

  const E8pBlock second, first;
};

__m512i Broadcast(const int8_t* a) {
  return _mm512_set1_epi32(*reinterpret_cast<const int32_t __attribute__((may_alias))*>(a));
}

// One panel and one group.
template <int kBits, int R>
void Panel(const GemvTile& t, const StepTable& table, const int8_t* a, const uint8_t* b,
           int32_t* c) {
  constexpr int kChains = R <= 4 ? 2 : 1;  // sums kept per token
  __m512i sums[R][kChains];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kChains; ++i) sums[r][i] = _mm512_setzero_si512();
  }
  for (int64_t k = 0; k < t.k; k += kBlock, a += kBlock, b += kBits * kPlane) {
    PrefetchAhead<kBits * kPlane>(b);
    const Block<kBits> block(table, *t.words, b);
#pragma GCC unroll 4
    for (int code = 0; code < 4; ++code) {
      __m512i lines[2];
      block.Lines(code, lines);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const int8_t* x = a + r * t.a_stride + 8 * code;
        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], lines[0], Broadcast(x));
        __m512i& other = sums[r][kChains - 1];
        other = _mm512_dpbusd_epi32(other, lines[1], Broadcast(x + 4));
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const __m512i sum = kChains == 1 ? sums[r][0] : _mm512_add_epi32(sums[r][0], sums[r][1]);
    _mm512_storeu_si512(c + r * kTileOutputs, sum);
  }
}

template <int kBits, int R>
void Run(const GemvTile& t) {
  const StepTable table(*t.words);
  for (int64_t panel = 0; panel < 2; ++panel) {
    for (int64_t g = 0; g < t.groups; ++g) {
      Panel<kBits, R>(t, table, t.a + g * t.k,
                      t.b + panel * t.b_stride + g * t.k / kBlock * kBits * kPlane,
                      t.c + g * R * kTileOutputs + panel * kPanel);
    }
  }
}

template <int kBits>
void Dispatch(const GemvTile& t) {
  constexpr void (*kRuns[])(const GemvTile&) = {
      Run<kBits, 1>, Run<kBits, 2>, Run<kBits, 3>, Run<kBits, 4>,  Run<kBits, 5>,  Run<kBits, 6>,
      Run<kBits, 7>, Run<kBits, 8>, Run<kBits, 9>, Run<kBits, 10>, Run<kBits, 11>, Run<kBits, 12>};
  kRuns[t.rows - 1](t);
}

}  // namespace

void avx512_gemv_p2s8(const GemvTile& tile) {
  Dispatch<2>(tile);
}
void avx512_gemv_p3s8(const GemvTile& tile) {
  Dispatch<3>(tile);
}
void avx512_gemv_p4s8(const GemvTile& tile) {
  Dispatch<4>(tile);
}

}  // namespace nibble::cpu
