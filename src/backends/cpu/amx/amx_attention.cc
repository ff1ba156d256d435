// SPDX-License-Identifier: Apache-2.0
// Per page and 32 rows: the scores in C tiles, the online softmax in vectors, then O += P V 32
// columns at a time. A row's sums run in a fixed order whatever rows
// share its tile.
#include <immintrin.h>

#include "backends/cpu/amx/tile_config.h"
#include "backends/cpu/attention/attention_tiles.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kKeys = kTileAttentionKeys;
constexpr int64_t kTileHalves = 16 * 32;  // bf16 values of a tile
constexpr int64_t kBlock = 32;            // rows in flight: two tiles
constexpr float kMasked = -1e30f;
constexpr float kSlack = 8;  // a maximum may be exceeded by 2^8 before everything is scaled to it

// bf16 of (code - 8) for the low four bits of each 16-bit lane.
__m512i NibbleTable() {
  const __m512i ints =
      _mm512_sub_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                       _mm512_set1_epi32(8));
  const __m512i bits = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(ints)), 16);
  const __m256i half = _mm512_cvtepi32_epi16(bits);
  return _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
}

// Two vectors of codes 0..255 to pairs of bf16 (code - middle), the first in the lower halves.
__m512i PairOfBytes(__m512i lower, __m512i upper, __m512i middle) {
  const __m512i a = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_sub_epi32(lower, middle)));
  const __m512i b = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_sub_epi32(upper, middle)));
  return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(a, 16), b);
}

// K and V of keys that do not exist stay what earlier pages left, which is finite: their P is 0.
// K as B tiles [head_dim / 32][4 key tiles][16 pairs of dimensions][16 keys][2].
uint16_t* KeySlot(uint16_t* k, int64_t pair, int64_t key_tile) {
  return k + (pair / 16 * 4 + key_tile) * kTileHalves + pair % 16 * 32;
}

void ConvertKeys(const AttentionPage& page, int64_t head_dim, uint16_t* k) {
  const __m512i table = NibbleTable(), byte = _mm512_set1_epi32(255);
  const __m512i middle = _mm512_set1_epi32(page.k_middle);
  const int64_t pairs = page.k_bits == 4 ? 4 : 2;  // of a dword
  for (int64_t g = 0; g < head_dim / 2 / pairs; ++g) {
    for (int64_t tile = 0; tile * 16 < page.tokens; ++tile) {
      const __m512i raw = _mm512_loadu_si512(page.k_dwords + g * kKeys + tile * 16);
      const auto store = [&](int64_t i, __m512i value) __attribute__((always_inline)) {
        _mm512_store_si512(KeySlot(k, g * pairs + i, tile), value);
      };
      if (page.k_bits == 8) {
        store(0, PairOfBytes(_mm512_and_si512(raw, byte),
                             _mm512_and_si512(_mm512_srli_epi32(raw, 8), byte), middle));
        store(1, PairOfBytes(_mm512_and_si512(_mm512_srli_epi32(raw, 16), byte),
                             _mm512_srli_epi32(raw, 24), middle));
        continue;
      }
      // Code 2i in bits 0..3 of the lower half, code 2i + 1 in those of the upper half.
      const auto codes = [&](__m512i lower, __m512i upper) __attribute__((always_inline)) {
        return _mm512_permutexvar_epi16(_mm512_mask_blend_epi16(0xAAAAAAAA, lower, upper), table);
      };
      store(0, codes(raw, _mm512_slli_epi32(raw, 12)));
      store(1, codes(_mm512_srli_epi32(raw, 8), _mm512_slli_epi32(raw, 4)));
      store(2, codes(_mm512_srli_epi32(raw, 16), _mm512_srli_epi32(raw, 4)));
      store(3, codes(_mm512_srli_epi32(raw, 24), _mm512_srli_epi32(raw, 12)));
    }
  }
}

// V as B tiles [2 x 32 keys][head_dim / 16][16 pairs of keys][16 columns][2].
void ConvertValues(const AttentionPage& page, int64_t head_dim, uint16_t* v) {
  const __m512i table = NibbleTable(), byte = _mm512_set1_epi32(255);
  const __m512i middle = _mm512_set1_epi32(page.v_middle);
  const int64_t row_bytes = head_dim * page.v_bits / 8;
  for (int64_t pair = 0; 2 * pair < page.tokens; ++pair) {
    const uint8_t* a = page.v_codes + 2 * pair * row_bytes;
    uint16_t* out = v + pair / 16 * (head_dim / 16) * kTileHalves + pair % 16 * 32;
    for (int64_t d = 0; d < head_dim; d += 32, out += 2 * kTileHalves) {
      __m512i even, odd;
      if (page.v_bits == 4) {
        const auto load = [](const uint8_t* p) __attribute__((always_inline)) {
          return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        };
        const __m512i both =
            _mm512_or_si512(load(a + d / 2), _mm512_slli_epi32(load(a + row_bytes + d / 2), 16));
        even = _mm512_permutexvar_epi16(both, table);
        odd = _mm512_permutexvar_epi16(_mm512_srli_epi32(both, 4), table);
      } else {
        const auto load = [](const uint8_t* p) __attribute__((always_inline)) {
          return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
        };
        const __m512i x = load(a + d), y = load(a + row_bytes + d);
        even = PairOfBytes(_mm512_and_si512(x, byte), _mm512_and_si512(y, byte), middle);
        odd = PairOfBytes(_mm512_srli_epi32(x, 8), _mm512_srli_epi32(y, 8), middle);
      }
      _mm512_store_si512(out, even);
      _mm512_store_si512(out + kTileHalves, odd);
    }
  }
}

// 2^x for x <= 0: x = n + f, |f| <= 1/2, and the polynomial of attention.cc for 2^f; 0 below
// 2^-100, which no sum that has a 1 can feel, because results that are not normal take a slow path.
__m512 Exp2(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(0x1.5bda40p-10f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3ce8acp-7f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6b6d8p-5f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebf9c2p-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e42ap-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-100.0f), _CMP_GE_OQ);
  return _mm512_maskz_scalef_ps(normal, p, n);
}

void Scale(__m512 factor, float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    _mm512_store_ps(x + i, _mm512_mul_ps(_mm512_load_ps(x + i), factor));
  }
}

__m512 RoundToBf16(__m512 x) {
  const __m256bh rounded = _mm512_cvtneps_pbh(x);
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(reinterpret_cast<const __m256i&>(rounded)), 16));
}

void StoreBf16(__m512 a, __m512 b, uint16_t* out) {
  const __m512bh pair = _mm512_cvtne2ps_pbh(b, a);
  _mm512_storeu_si512(out, reinterpret_cast<const __m512i&>(pair));
}

// Constants of the page's keys, 16 per vector; zero for keys that do not exist.
struct KeyConstants {
  __m512 scale[4], zero[4];      // S = scale * product - zero * sum Q
  __m512 v_scale[4], v_zero[4];  // P' = P * v_scale; shift += P' * v_zero
};

KeyConstants LoadConstants(const AttentionPage& page) {
  KeyConstants c;
  const __m512 k_middle = _mm512_set1_ps(static_cast<float>(page.k_middle));
  const __m512 v_middle = _mm512_set1_ps(static_cast<float>(page.v_middle));
  for (int i = 0; i < 4; ++i) {
    const int64_t count = page.tokens - 16 * i;
    const auto mask = static_cast<__mmask16>(count >= 16  ? 0xFFFF
                                             : count <= 0 ? 0
                                                          : (1 << count) - 1);
    c.scale[i] = _mm512_maskz_loadu_ps(mask, page.k_scales + 16 * i);
    c.v_scale[i] = _mm512_maskz_loadu_ps(mask, page.v_scales + 16 * i);
    const __m512 k_zero = _mm512_maskz_loadu_ps(mask, page.k_zeros + 16 * i);
    const __m512 v_zero = _mm512_maskz_loadu_ps(mask, page.v_zeros + 16 * i);
    c.zero[i] = _mm512_mul_ps(c.scale[i], _mm512_sub_ps(k_zero, k_middle));
    c.v_zero[i] = _mm512_sub_ps(v_zero, v_middle);
  }
  return c;
}

// One row's products with 64 keys to P' in bf16; m, l, shift and O follow a maximum that
// is much larger. Following every one would cost a mispredicted branch each (the idea of
// FlashAttention 4, 2025); P stays below 2^kSlack and the quotient O / l does not change.
void Softmax(const KeyConstants& keys, const float* products, int64_t first, int64_t last,
             int64_t row, AttentionTiles& t, uint16_t* p) {
  __m512 x[4];
  const __m512 q_sum = _mm512_set1_ps(t.q_sum[row]);
  __m512 max = _mm512_set1_ps(kMasked);
  const uint64_t seen = (last >= 64 ? ~uint64_t{0} : (uint64_t{1} << last) - 1) &
                        (first >= 64 ? 0 : ~uint64_t{0} << first);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 product = _mm512_mul_ps(_mm512_load_ps(products + 16 * i), keys.scale[i]);
    x[i] = _mm512_mask_mov_ps(_mm512_set1_ps(kMasked), static_cast<__mmask16>(seen >> (16 * i)),
                              _mm512_fnmadd_ps(keys.zero[i], q_sum, product));
    max = _mm512_max_ps(max, x[i]);
  }
  float* l = t.l + row * 16;
  float* shift = t.shift + row * 16;
  const float new_max = _mm512_reduce_max_ps(max);
  if (new_max > t.m[row] + kSlack) {
    const __m512 factor = Exp2(_mm512_set1_ps(t.m[row] - new_max));
    Scale(factor, l, 16);
    Scale(factor, shift, 16);
    Scale(factor, t.o + row * t.head_dim, t.head_dim);
    t.m[row] = new_max;
  }
  max = _mm512_set1_ps(t.m[row]);
  __m512 sum = _mm512_load_ps(l), moved = _mm512_load_ps(shift);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = Exp2(_mm512_sub_ps(x[i], max));
    sum = _mm512_add_ps(sum, x[i]);
    x[i] = _mm512_mul_ps(x[i], keys.v_scale[i]);
    moved = _mm512_fmadd_ps(x[i], keys.v_zero[i], moved);
  }
  _mm512_store_ps(l, sum);
  _mm512_store_ps(shift, moved);
  StoreBf16(x[0], x[1], p);
  StoreBf16(x[2], x[3], p + 32);
}

// products [32 rows][64] = Q K^T; without kLower only the first 16 rows. Tiles: 0..3 = C, 4, 5 = Q,
// 6, 7 = K. Four products lie between two that add to the same tile: their latency.
template <bool kLower>
void Scores(const AttentionTiles& t, int64_t row, int64_t tokens, float* products) {
  const int64_t stride = t.head_dim * 2, lower = 16 * t.head_dim;
  for (int64_t keys = 0; keys < tokens; keys += 32) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < t.head_dim; d += 32) {
      const uint16_t* k = t.k + (d / 32 * 4 + keys / 16) * kTileHalves;
      _tile_loadd(6, k, 64);
      _tile_loadd(7, k + kTileHalves, 64);
      const uint16_t* q = t.q + row * t.head_dim + d;
      _tile_loadd(4, q, stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (!kLower) continue;
      _tile_loadd(5, q + lower, stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    float* out = products + keys;
    _tile_stored(0, out, kKeys * 4);
    _tile_stored(1, out + 16, kKeys * 4);
    if (!kLower) continue;
    _tile_stored(2, out + 16 * kKeys, kKeys * 4);
    _tile_stored(3, out + 16 * kKeys + 16, kKeys * 4);
  }
}

// O += P V for 32 rows, or 16. p [32][64]. Tiles: 0..3 = C, 4, 5 = P, 6, 7 = V.
template <bool kLower>
void Values(AttentionTiles& t, int64_t row, int64_t tokens, const uint16_t* p) {
  const int64_t stride = t.head_dim * 4;
  for (int64_t d = 0; d < t.head_dim; d += 32) {
    float* o = t.o + row * t.head_dim + d;
    float* lower = o + 16 * t.head_dim;
    _tile_loadd(0, o, stride);
    _tile_loadd(1, o + 16, stride);
    if (kLower) _tile_loadd(2, lower, stride);
    if (kLower) _tile_loadd(3, lower + 16, stride);
    for (int64_t keys = 0; keys < tokens; keys += 32) {
      const uint16_t* v = t.v + (keys / 32 * t.head_dim + d) / 16 * kTileHalves;
      _tile_loadd(6, v, 64);
      _tile_loadd(7, v + kTileHalves, 64);
      _tile_loadd(4, p + keys, kKeys * 2);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (!kLower) continue;
      _tile_loadd(5, p + 16 * kKeys + keys, kKeys * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, o, stride);
    _tile_stored(1, o + 16, stride);
    if (kLower) _tile_stored(2, lower, stride);
    if (kLower) _tile_stored(3, lower + 16, stride);
  }
}

// True if any of the rows [row, row + kBlock) sees a key of the page.
bool AnyKey(const AttentionPage& page, int64_t row, int64_t rows) {
  bool any = false;
  for (int64_t r = row; r < rows && r < row + kBlock; ++r) any |= page.first[r] < page.last[r];
  return any;
}

}  // namespace

void amx_attention_load(const float* q, float factor, int64_t row, AttentionTiles& t) {
  const __m512 f = _mm512_set1_ps(factor);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t d = 0; d < t.head_dim; d += 32) {
    const __m512 a = RoundToBf16(_mm512_mul_ps(_mm512_loadu_ps(q + d), f));
    const __m512 b = RoundToBf16(_mm512_mul_ps(_mm512_loadu_ps(q + d + 16), f));
    sum = _mm512_add_ps(sum, _mm512_add_ps(a, b));
    StoreBf16(a, b, t.q + row * t.head_dim + d);
  }
  t.q_sum[row] = _mm512_reduce_add_ps(sum);
  t.m[row] = kFirstMaximum;
  _mm512_store_ps(t.l + row * 16, _mm512_setzero_ps());
  _mm512_store_ps(t.shift + row * 16, _mm512_setzero_ps());
  for (int64_t d = 0; d < t.head_dim; d += 16) {
    _mm512_store_ps(t.o + row * t.head_dim + d, _mm512_setzero_ps());
  }
}

void amx_attention_page(const AttentionPage& page, AttentionTiles& t) {
  ConvertKeys(page, t.head_dim, t.k);
  ConvertValues(page, t.head_dim, t.v);
  const KeyConstants keys = LoadConstants(page);
  // Few rows take less time in lower tiles; the last of several tiles may hold stale rows.
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) {  // all but K and V
    config.rows[tile] = static_cast<uint8_t>(t.rows < 16 ? t.rows : 16);
  }
  LoadTileConfig(config);
  alignas(64) float products[kBlock * kKeys];
  alignas(64) uint16_t p[kBlock * kKeys];
  for (int64_t row = 0; row < t.rows; row += kBlock) {
    if (!AnyKey(page, row, t.rows)) continue;
    const int64_t rows = t.rows - row < kBlock ? t.rows - row : kBlock;
    // The compiler does not know that tile loads and stores touch memory.
    asm volatile("" ::"r"(products), "r"(p) : "memory");
    rows > 16 ? Scores<true>(t, row, page.tokens, products)
              : Scores<false>(t, row, page.tokens, products);
    asm volatile("" ::: "memory");
    for (int64_t r = 0; r < rows; ++r) {
      Softmax(keys, products + r * kKeys, page.first[row + r], page.last[row + r], row + r, t,
              p + r * kKeys);
    }
    asm volatile("" ::: "memory");
    rows > 16 ? Values<true>(t, row, page.tokens, p) : Values<false>(t, row, page.tokens, p);
    asm volatile("" ::: "memory");
  }
  _tile_release();  // a thread that keeps live tiles makes every context switch save 8 KiB
}

void amx_attention_finish(const AttentionTiles& t, int64_t row, float* result) {
  const __m512 shift = _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_load_ps(t.shift + row * 16)));
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int64_t d = 0; d < t.head_dim; d += 32) {
    const float* o = t.o + row * t.head_dim + d;
    const __m512 even = _mm512_sub_ps(_mm512_load_ps(o), shift);
    const __m512 odd = _mm512_sub_ps(_mm512_load_ps(o + 16), shift);
    _mm512_storeu_ps(result + d, _mm512_permutex2var_ps(even, low, odd));
    _mm512_storeu_ps(result + d + 16, _mm512_permutex2var_ps(even, high, odd));
  }
  result[kPartialSum] = _mm512_reduce_add_ps(_mm512_load_ps(t.l + row * 16));
  result[kPartialMax] = t.m[row];
}

}  // namespace nibble::cpu
