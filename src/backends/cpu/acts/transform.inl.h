// SPDX-License-Identifier: Apache-2.0
// The fast transform x <- M x (transforms/hadamard.h), compiled once per instruction set. Lanes
// never mix rows and the order of operations depends on the spec alone, so a row has the same bits
// in any batch.
//
// Sylvester factors: butterflies, three stages per pass over memory; stages shorter than a vector
// run inside registers.
//
// Dense +-1 factors ("four Russians", Arlazarov et al. 1970): the 16 signed sums of four inputs are
// tabulated for a tile of kTile lanes, so an output is order/4 table loads and adds. AMX multiplies
// them on matrix tiles (amx/amx_transform.cc). Other dense factors take the multiply-adds, and
// Fourier factors go to KissFFT.
#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>

#include "backends/cpu/acts/transform_plan.h"
#include "transforms/fourier.h"

#if defined(NIBBLE_CPU_TRANSFORM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CPU_TRANSFORM_INL_H
#undef NIBBLE_CPU_TRANSFORM_INL_H
#else
#define NIBBLE_CPU_TRANSFORM_INL_H
#endif

#include "backends/cpu/common/lanes.inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::cpu {
namespace HWY_NAMESPACE {
namespace {

// --- Dense factors ------------------------------------------------------------------------------

constexpr int64_t kTableSize = 16 * kTile;  // floats for four inputs

// table[p][lane] = sum over i of (bit i of p ? -1 : 1) * x[i * stride + lane], i < 4.
HWY_INLINE void BuildTable(const float* x, int64_t stride, float* table) {
  const DF d;
  for (int64_t lane = 0; lane < kTile; lane += kLanes) {
    const VF x0 = hn::LoadU(d, x + lane), x1 = hn::LoadU(d, x + stride + lane);
    const VF x2 = hn::LoadU(d, x + 2 * stride + lane), x3 = hn::LoadU(d, x + 3 * stride + lane);
    const VF a = hn::Add(x0, x1), b = hn::Sub(x0, x1), c = hn::Add(x2, x3), e = hn::Sub(x2, x3);
    const VF sums[8] = {hn::Add(a, c), hn::Sub(c, b),         hn::Add(c, b),
                        hn::Sub(c, a), hn::Sub(a, e),         hn::Neg(hn::Add(b, e)),
                        hn::Sub(b, e), hn::Neg(hn::Add(a, e))};
    for (int64_t p = 0; p < 8; ++p) {
      hn::Store(sums[p], d, table + p * kTile + lane);
      hn::Store(hn::Neg(sums[p]), d, table + (15 - p) * kTile + lane);
    }
  }
}

// kTile columns in place: x[f * stride + lane] <- scale * sum over i of H[f, i] x[i * stride +
// lane].
inline void TableTile(const TransformAxis& axis, float scale, float* x, int64_t stride,
                      float* tables) {
  const DF d;
  const int64_t blocks = axis.order / 4;
  for (int64_t b = 0; b < blocks; ++b) {
    BuildTable(x + 4 * b * stride, stride, tables + b * kTableSize);
  }
  constexpr int64_t kParts = kTile / kLanes;
  const VF factor = hn::Set(d, scale);
  const uint8_t* pattern = axis.patterns.data();
  for (int64_t row = 0; row < axis.order; row += 4) {
    VF acc[4][kParts];
    for (auto& parts : acc) {
      for (VF& part : parts) part = hn::Zero(d);
    }
    const float* table = tables;
#pragma GCC unroll 4
    for (int64_t b = 0; b < blocks; ++b, pattern += 4, table += kTableSize) {
      for (int64_t r = 0; r < 4; ++r) {
        for (int64_t i = 0; i < kParts; ++i) {
          acc[r][i] = hn::Add(acc[r][i], hn::Load(d, table + pattern[r] + i * kLanes));
        }
      }
    }
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < kParts; ++i) {
        hn::StoreU(hn::Mul(acc[r][i], factor), d, x + (row + r) * stride + i * kLanes);
      }
    }
  }
}

// TableTile for entries of any size. Not inline: that would cost TableTile registers.
HWY_NOINLINE void EntryTile(const TransformAxis& axis, float scale, float* x, int64_t stride,
                            float* inputs) {
  const DF d;
  for (int64_t f = 0; f < axis.order; ++f) {
    std::memcpy(inputs + f * kTile, x + f * stride, kTile * sizeof(float));
  }
  constexpr int64_t kParts = kTile / kLanes, kRows = kEntryRows / kParts;
  const int64_t pitch = (axis.order + kEntryRows - 1) / kEntryRows * kEntryRows;
  const VF factor = hn::Set(d, scale);
  for (int64_t row = 0; row < axis.order; row += kRows) {
    VF acc[kRows][kParts];
    for (auto& parts : acc) {
      for (VF& part : parts) part = hn::Zero(d);
    }
    const float *entry = axis.entries.data() + row, *input = inputs;
    for (int64_t f = 0; f < axis.order; ++f, entry += pitch, input += kTile) {
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t i = 0; i < kParts; ++i) {
          acc[r][i] = hn::MulAdd(hn::Set(d, entry[r]), hn::Load(d, input + i * kLanes), acc[r][i]);
        }
      }
    }
    for (int64_t r = 0; r < HWY_MIN(kRows, axis.order - row); ++r) {
      for (int64_t i = 0; i < kParts; ++i) {
        hn::StoreU(hn::Mul(acc[r][i], factor), d, x + (row + r) * stride + i * kLanes);
      }
    }
  }
}

// TableTile for kTileOutputs columns on AMX.
inline void SignTile(const TransformAxis& axis, float scale, float* x, int64_t stride,
                     float* memory) {
  amx_sign_product({.h = axis.signs.data(),
                    .order = axis.order,
                    .x = x,
                    .stride = stride,
                    .terms = reinterpret_cast<uint16_t*>(memory)});
  if (scale == 1.0f) return;
  const DF d;
  const VF factor = hn::Set(d, scale);
  for (float* row = x; row < x + axis.order * stride; row += stride) {
    for (int64_t j = 0; j < kTileOutputs; j += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, row + j), factor), d, row + j);
    }
  }
}

template <size_t kRun>
HWY_INLINE void CopyColumns(const float* from, int64_t from_stride, float* to, int64_t to_stride,
                            int64_t rows) {
  for (int64_t f = 0; f < rows; ++f) {
    std::memcpy(to + f * to_stride, from + f * from_stride, kRun * sizeof(float));
  }
}

// Copies columns [first, first + count) of x, seen as [.., order, after], to or from a tile.
template <bool kToTile>
HWY_INLINE void MoveTile(const TransformAxis& axis, int64_t first, int64_t count, float* x,
                         float* tile) {
  int64_t run = 0;
  for (int64_t lane = 0; lane < count; lane += run) {
    const int64_t block = (first + lane) / axis.after, j = (first + lane) % axis.after;
    float* column = x + block * axis.order * axis.after + j;
    const auto copy = [&](auto size) HWY_ATTR {
      if constexpr (kToTile) {
        CopyColumns<size()>(column, axis.after, tile + lane, axis.columns(), axis.order);
      } else {
        CopyColumns<size()>(tile + lane, axis.columns(), column, axis.after, axis.order);
      }
      return static_cast<int64_t>(size());
    };
    const int64_t contiguous = HWY_MIN(axis.after - j, count - lane);
    if (contiguous >= 8) {
      run = copy(std::integral_constant<size_t, 8>());
    } else if (contiguous >= 4) {
      run = copy(std::integral_constant<size_t, 4>());
    } else {
      run = copy(std::integral_constant<size_t, 1>());
    }
  }
}

inline void DenseAxis(const TransformAxis& axis, float scale, float* x, int64_t count) {
  const int64_t width = axis.columns();
  // Tables of kTile lanes, or three bf16 terms of 32 columns and up to 31 more rows.
  const int64_t memory_size = HWY_MAX(4 * kTile * axis.order, 48 * (axis.order + 31));
  float* memory = ThreadScratch(Scratch::kDense, memory_size + width * axis.order);
  float* tile = memory + memory_size;
  const auto run = [&](float* columns, int64_t stride) HWY_ATTR {
    if (!axis.patterns.empty()) {
      TableTile(axis, scale, columns, stride, memory);
    } else if (!axis.signs.empty()) {
      SignTile(axis, scale, columns, stride, memory);
    } else {
      EntryTile(axis, scale, columns, stride, memory);
    }
  };
  const int64_t columns = count / axis.order;
  for (int64_t first = 0; first < columns; first += width) {
    if (axis.after % width == 0) {
      run(x + first / axis.after * axis.order * axis.after + first % axis.after, axis.after);
      continue;
    }
    const int64_t used = HWY_MIN(width, columns - first);
    if (used < width) std::fill_n(tile, width * axis.order, 0.0f);
    MoveTile<true>(axis, first, used, x, tile);
    run(tile, width);
    MoveTile<false>(axis, first, used, x, tile);
  }
}

// --- Sylvester factors --------------------------------------------------------------------------

HWY_INLINE void Butterfly(VF& a, VF& b) {
  const VF sum = hn::Add(a, b);
  b = hn::Sub(a, b);
  a = sum;
}

template <int kRadix>
HWY_INLINE void Butterflies(VF (&v)[8]) {
  for (int half = 1; half < kRadix; half *= 2) {
    for (int i = 0; i < kRadix; ++i) {
      if ((i & half) == 0) Butterfly(v[i], v[i + half]);
    }
  }
}

// The stages inside a vector: distances after, 2 after, .. below min(block, kLanes).
class LaneStages {
 public:
  LaneStages(int64_t after, int64_t block) : after_(after), block_(block) {
    const DF d;
    const hn::RebindToUnsigned<DF> du;
    const auto lane = hn::Iota(du, 0);
    const auto signs = [&](uint32_t distance) HWY_ATTR {
      const auto odd = hn::Ne(hn::And(lane, hn::Set(du, distance)), hn::Zero(du));
      return hn::IfThenElse(hn::RebindMask(d, odd), hn::Set(d, -1.0f), hn::Set(d, 1.0f));
    };
    sign1_ = signs(1), sign2_ = signs(2), sign4_ = signs(4), sign8_ = signs(8);
  }

  HWY_INLINE VF operator()(VF v) const {
    const DF d;
    if (Has(1)) v = hn::MulAdd(v, sign1_, hn::Shuffle2301(v));
    if (Has(2)) v = hn::MulAdd(v, sign2_, hn::Shuffle1032(v));
    if constexpr (kLanes == 8) {
      if (Has(4)) v = hn::MulAdd(v, sign4_, hn::ConcatLowerUpper(d, v, v));
    } else {
      if (Has(4)) v = hn::MulAdd(v, sign4_, hn::SwapAdjacentBlocks(v));
      if (Has(8)) v = hn::MulAdd(v, sign8_, hn::ConcatLowerUpper(d, v, v));
    }
    return v;
  }

 private:
  HWY_INLINE bool Has(int64_t distance) const { return distance >= after_ && distance < block_; }

  int64_t after_, block_;
  VF sign1_, sign2_, sign4_, sign8_;
};

// Lane stages, then kRadix vectors in a row with each other; x holds whole blocks.
template <int kRadix>
HWY_INLINE void FirstPass(const LaneStages& stages, float scale, float* x, int64_t count) {
  const DF d;
  const VF factor = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + kRadix * kLanes <= count; i += kRadix * kLanes) {
    VF v[8];
    for (int r = 0; r < kRadix; ++r) v[r] = stages(hn::LoadU(d, x + i + r * kLanes));
    Butterflies<kRadix>(v);
    for (int r = 0; r < kRadix; ++r) hn::StoreU(hn::Mul(v[r], factor), d, x + i + r * kLanes);
  }
  if (i == count) return;
  HWY_ALIGN float tail[kLanes] = {};  // only with kRadix == 1: blocks are no longer than a vector
  std::memcpy(tail, x + i, static_cast<size_t>(count - i) * sizeof(float));
  hn::Store(hn::Mul(stages(hn::Load(d, tail)), factor), d, tail);
  std::memcpy(x + i, tail, static_cast<size_t>(count - i) * sizeof(float));
}

// The stages of distances stride, 2 stride, .. (log2 kRadix of them); stride is whole vectors.
template <int kRadix>
HWY_INLINE void StridedPass(int64_t stride, float scale, float* x, int64_t count) {
  const DF d;
  const VF factor = hn::Set(d, scale);
  for (float* block = x; block < x + count; block += kRadix * stride) {
    for (float* p = block; p < block + stride; p += kLanes) {
      VF v[8];
      for (int r = 0; r < kRadix; ++r) v[r] = hn::LoadU(d, p + r * stride);
      Butterflies<kRadix>(v);
      for (int r = 0; r < kRadix; ++r) hn::StoreU(hn::Mul(v[r], factor), d, p + r * stride);
    }
  }
}

// Any `after`, one stage at a time: runs of `distance` floats, the last lanes one by one.
HWY_INLINE void PlainStage(int64_t distance, float scale, float* x, int64_t count) {
  const DF d;
  const VF factor = hn::Set(d, scale);
  for (float* block = x; block < x + count; block += 2 * distance) {
    int64_t j = 0;
    for (; j + kLanes <= distance; j += kLanes) {
      VF a = hn::LoadU(d, block + j), b = hn::LoadU(d, block + distance + j);
      Butterfly(a, b);
      hn::StoreU(hn::Mul(a, factor), d, block + j);
      hn::StoreU(hn::Mul(b, factor), d, block + distance + j);
    }
    for (; j < distance; ++j) {
      const float a = block[j], b = block[distance + j];
      block[j] = (a + b) * scale;
      block[distance + j] = (a - b) * scale;
    }
  }
}

// Calls f with radix as a compile-time constant.
template <typename F>
HWY_INLINE void WithRadix(int64_t radix, const F& f) {
  if (radix == 8) return f(std::integral_constant<int, 8>());
  if (radix == 4) return f(std::integral_constant<int, 4>());
  if (radix == 2) return f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 1>());
}

inline void SylvesterAxis(const TransformAxis& axis, float scale, float* x, int64_t count) {
  const int64_t block = axis.order * axis.after;
  int64_t distance = axis.after;
  const auto factor = [&] { return distance == block ? scale : 1.0f; };  // in the last pass only
  if (distance < kLanes && (distance & (distance - 1)) == 0) {
    const int64_t radix = HWY_MAX(1, HWY_MIN(8, block / kLanes));
    const LaneStages stages(distance, block);
    distance = HWY_MIN(block, radix * kLanes);
    WithRadix(radix, [&](auto r) HWY_ATTR { FirstPass<r()>(stages, factor(), x, count); });
  }
  while (distance < block) {
    const int64_t stride = distance;
    if (stride % kLanes != 0) {
      distance *= 2;
      PlainStage(stride, factor(), x, count);
    } else {
      const int64_t radix = HWY_MIN(8, block / stride);
      distance *= radix;
      WithRadix(radix, [&](auto r) HWY_ATTR { StridedPass<r()>(stride, factor(), x, count); });
    }
  }
}

// --- Rows of 16 bits ----------------------------------------------------------------------------

// Rounds to 11 significant bits, halves to even (InputSpec::transform_bits).
HWY_INLINE VF HalfPrecision(VF v) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1));
  const auto sum = hn::Add(bits, hn::Add(odd, hn::Set(du, 0xFFF)));
  return hn::IfThenElse(hn::IsNaN(v), v, hn::BitCast(d, hn::And(sum, hn::Set(du, 0xFFFFE000))));
}

inline void RoundToHalfPrecision(float* x, int64_t count) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(HalfPrecision(hn::LoadU(d, x + i)), d, x + i);
  }
  HWY_ALIGN float tail[kLanes] = {};
  const size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
  std::memcpy(tail, x + i, bytes);
  hn::Store(HalfPrecision(hn::Load(d, tail)), d, tail);
  std::memcpy(x + i, tail, bytes);
}

// --- All factors --------------------------------------------------------------------------------

// In place on `rows` rows. A caller that has many rows passes plan.row_group at a time: they stay
// in a first-level cache between the factors.
inline void TransformGroup(const TransformPlan& plan, float* x, int64_t rows) {
  const int64_t count = rows * plan.spec.width();
  for (const TransformAxis& axis : plan.axes) {
    const float scale = &axis == &plan.axes.back() ? plan.scale : 1.0f;
    if (axis.dense()) {
      DenseAxis(axis, scale, x, count);
    } else if (axis.fourier) {
      ApplyFourier(*axis.fourier, axis.after, scale, std::span(x, static_cast<size_t>(count)));
    } else {
      SylvesterAxis(axis, scale, x, count);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
