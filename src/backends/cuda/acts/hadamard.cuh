// SPDX-License-Identifier: Apache-2.0
// Stages of an online transform on one fp32 row in shared memory, in place, by all threads of a
// block. A barrier must stand between stages. No stage scales.
//
// Powers of 2 are butterflies. A dense +-1 factor is a matrix product on tensor cores: its matrix
// is exact in bf16, a value of x is the sum of two bf16 terms up to 2^-18 of it, and sums are fp32.
// Other dense factors are multiply-adds in fp32.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/acts/hadamard_plan.h"
#include "backends/cuda/ptx/ptx.h"

namespace nibble::cuda {

// The place of each element of a row. Segments of a power of 2 are 4 floats apart, which keeps the
// columns read by a dense factor in different banks.
struct RowLayout {
  int shift = 31;  // log2 of the segment, 31: no gaps

  __host__ __device__ static RowLayout Of(int segment) {
    RowLayout layout;
    if (segment >= 8 && (segment & (segment - 1)) == 0) {
      for (layout.shift = 0; 1 << layout.shift < segment;) ++layout.shift;
    }
    return layout;
  }
  __host__ __device__ int At(int i) const { return i + (i >> shift) * 4; }
};

// Values of 11 significant bits (HadamardPlan::halves).
template <int kCount>
__device__ inline void ToHalfPrecision(float (&v)[kCount]) {
#pragma unroll
  for (float& value : v) value = HalfPrecision(value);
}

// Butterflies of v with strides 1, 2, .. 2^(bits - 1): sums and differences.
template <int bits>
__device__ inline void Butterflies(float (&v)[1 << bits]) {
#pragma unroll
  for (int half = 1; half < 1 << bits; half *= 2) {
#pragma unroll
    for (int i = 0; i < 1 << bits; ++i) {
      if (i & half) continue;
      const float a = v[i], b = v[i + half];
      v[i] = a + b;
      v[i + half] = a - b;
    }
  }
}

// Butterflies between lanes with strides 8 to 4 * lanes; lane l has elements 8 l to 8 l + 7.
template <int half = 1>
__device__ inline void LaneButterflies(float (&v)[8], int lanes) {
  if constexpr (half < 32) {
    if (half >= lanes) return;
    const float sign = threadIdx.x & half ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] = fmaf(sign, v[i], __shfl_xor_sync(0xFFFFFFFF, v[i], half));
    }
    LaneButterflies<2 * half>(v, lanes);
  }
}

// One pass over the row: strides stride, 2 stride, .. stride << (bits - 1).
template <int bits>
__device__ inline void SylvesterPass(float* row, RowLayout layout, int width, int stride) {
  const int log2 = (stride & (stride - 1)) == 0 ? 31 - __clz(stride) : -1;
  for (int u = static_cast<int>(threadIdx.x); u < width >> bits;
       u += static_cast<int>(blockDim.x)) {
    const int block = log2 >= 0 ? u >> log2 : u / stride;
    float* const x = row + layout.At(block * (stride << bits) + u - block * stride);
    float v[1 << bits];
#pragma unroll
    for (int i = 0; i < 1 << bits; ++i) v[i] = x[i * stride];
    Butterflies<bits>(v);
#pragma unroll
    for (int i = 0; i < 1 << bits; ++i) x[i * stride] = v[i];
  }
}

// Strides first, 2 first, .. below end, in as few passes as 16 values per thread allow.
__device__ inline void Sylvester(float* row, RowLayout layout, int width, int first, int end) {
  while (first < end) {
    int left = 0;
    while (first << left < end) ++left;
    const int passes = (left + 3) / 4, bits = (left + passes - 1) / passes;
    switch (bits) {
      case 1:
        SylvesterPass<1>(row, layout, width, first);
        break;
      case 2:
        SylvesterPass<2>(row, layout, width, first);
        break;
      case 3:
        SylvesterPass<3>(row, layout, width, first);
        break;
      default:
        SylvesterPass<4>(row, layout, width, first);
    }
    first <<= bits;
    __syncthreads();
  }
}

// a and b as two pairs of bf16 whose sums they are, a in the low halves.
__device__ inline void SplitBf16(float a, float b, uint32_t& high, uint32_t& low) {
  high = PackBf16(a, b);
  low = PackBf16(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xFFFF0000));
}

// Two bf16 +-1 from bits 15 - position and 31 - position.
__device__ inline uint32_t PlusMinusOne(uint32_t signs, int position) {
  return AndOr(signs << position, 0x80008000, 0x3F803F80);
}

// The four registers of operand A for one step.
__device__ inline void SignFragment(uint32_t word, int step, uint32_t (&a)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) a[j] = PlusMinusOne(word, step % 4 * 4 + j);
}

// A warp's operand B: all values of 16 columns, which are lane g's column g of each eight.
template <int k_steps>
struct ColumnValues {
  // Orders that k_steps serves are larger than this (DeviceHadamard).
  static constexpr int kSure = k_steps == 11 ? 112 : k_steps == 7 ? 64 : 16 * (k_steps - 1);
  uint32_t high[k_steps][2][2], low[k_steps][2][2];  // [step][eight][half]

  // x: column 0 of the n-th eight.
  __device__ void Read(int n, const float* x, int order, int stride) {
    const int lane = static_cast<int>(threadIdx.x) % 32, q = lane % 4;
    const float* const first = x + lane / 4 + 2 * q * stride;
    const float* from = first;
#pragma unroll
    for (int step = 0; step < k_steps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int input = 16 * step + 8 * half;
        // Zero past the end, but read all the same: no branch. (Orders are even.)
        const bool inside = input + 8 <= kSure || input + 2 * q < order;
        const float* const p = inside ? from : x;
        const float a = p[0], b = p[stride];
        SplitBf16(inside ? a : 0, inside ? b : 0, high[step][n][half], low[step][n][half]);
        from += 8 * stride;
      }
    }
  }
};

// y[f', j] = sum over f of H[f', f] x[f, j] for all columns j = (block, c) of the row seen as
// [blocks, order, after]; after is a multiple of 8. A warp takes 16 columns and reads all their
// values before it writes the first result.
template <int k_steps>
__device__ inline void ApplyDense(float* row, RowLayout layout, int width, const DenseFactor& f) {
  constexpr int kWords = (k_steps + 3) / 4;
  constexpr bool kKeepSigns = k_steps <= 3;  // of the whole matrix, in registers
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int order = f.order, stride = layout.At(f.after), tiles = (order + 15) / 16;
  const int columns = width / order, groups = (columns + 15) / 16;
  // With few columns several warps share a group, each with its own rows of H.
  const int parts = max(1, warps / groups), part = warp % parts;

  const uint32_t* const signs = f.signs + lane;
  uint32_t kept[kKeepSigns ? k_steps : 1][kKeepSigns ? k_steps : 1][4];
  if constexpr (kKeepSigns) {
#pragma unroll
    for (int i = 0; i < k_steps * k_steps; ++i) {
      const uint32_t word = i / k_steps < tiles ? __ldg(signs + i / k_steps * 32) : 0;
      SignFragment(word, i % k_steps, kept[i / k_steps][i % k_steps]);
    }
  }
  for (int base = 0; base < groups; base += warps / parts) {
    const int group = base + warp / parts;
    // Eight columns are together in a block and a segment, and all or none of them exist. What is
    // read in place of missing ones does not matter.
    const int eights = group < groups ? min(2, columns / 8 - 2 * group) : 0;
    float* x[2];
    ColumnValues<k_steps> values;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int first = n < eights ? group * 16 + n * 8 : 0;
      const int block = columns == f.after ? 0 : first / f.after;
      x[n] = row + layout.At(block * (order - 1) * f.after + first);
      values.Read(n, x[n], order, stride);
    }
    if (parts > 1) __syncthreads();
    if (eights == 0) continue;
    const auto multiply_tile = [&](int tile, const auto& fragment) {
      float d[2][4] = {};  // [eight]
#pragma unroll
      for (int step = 0; step < k_steps; ++step) {
        uint32_t a[4];
        fragment(step, a);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          MmaBf16(d[n], a, values.high[step][n][0], values.high[step][n][1]);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          MmaBf16(d[n], a, values.low[step][n][0], values.low[step][n][1]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int y = tile * 16 + half * 8 + g;
        if (y >= order) continue;
        *reinterpret_cast<float2*>(x[0] + 2 * q + y * stride) = {d[0][2 * half],
                                                                 d[0][2 * half + 1]};
        if (eights < 2) continue;
        *reinterpret_cast<float2*>(x[1] + 2 * q + y * stride) = {d[1][2 * half],
                                                                 d[1][2 * half + 1]};
      }
    };
    if constexpr (kKeepSigns) {
#pragma unroll
      for (int tile = 0; tile < k_steps; ++tile) {
        if (tile % parts != part) continue;
        multiply_tile(tile, [&](int step, uint32_t(&a)[4]) {
#pragma unroll
          for (int j = 0; j < 4; ++j) a[j] = kept[tile][step][j];
        });
      }
    } else {
      for (int tile = part; tile < tiles; tile += parts) {
        multiply_tile(tile, [&](int step, uint32_t(&a)[4]) {
          SignFragment(__ldg(signs + (tile * kWords + step / 4) * 32), step, a);
        });
      }
    }
  }
}

// True if entry [y, k] of a +-1 matrix is -1.
__device__ inline bool IsNegative(const DenseFactor& f, int y, int k) {
  const int words = (f.k_steps + 3) / 4;
  const uint32_t word = __ldg(f.signs + (y / 16 * words + k / 64) * 32 + y % 8 * 4 + k % 8 / 2);
  const int position = k / 16 % 4 * 4 + y % 16 / 8 + k % 16 / 8 * 2;
  return (word >> (15 - position + k % 2 * 16) & 1) != 0;
}

// ApplyDense for a small order and any `after`: a thread per column, whose values it keeps.
template <int order>
__device__ inline void ApplyDenseByColumns(float* row, RowLayout layout, int width,
                                           const DenseFactor& f) {
  __shared__ uint32_t signs[order];  // of row y, bit k
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (thread < order) {
    uint32_t bits = 0;
    for (int k = 0; k < order; ++k) bits |= static_cast<uint32_t>(IsNegative(f, thread, k)) << k;
    signs[thread] = bits;
  }
  __syncthreads();
  for (int c = thread; c < width / order; c += threads) {
    const int first = c / f.after * (order - 1) * f.after + c;
    float x[order];
#pragma unroll
    for (int k = 0; k < order; ++k) x[k] = row[layout.At(first + k * f.after)];
    for (int y = 0; y < order; ++y) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < order; ++k) {
        sum += __uint_as_float(__float_as_uint(x[k]) ^ (signs[y] << (31 - k) & 0x80000000));
      }
      row[layout.At(first + y * f.after)] = sum;
    }
  }
}

// ApplyDense for any `after` and any entries, slowly: a warp per column, a lane for every 32nd row.
__device__ inline void ApplyDenseSlowly(float* row, RowLayout layout, int width,
                                        const DenseFactor& f) {
  constexpr int kRows = (kMaxDenseOrder + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int c = static_cast<int>(threadIdx.x) / 32; c < width / f.order; c += warps) {
    const int first = c / f.after * (f.order - 1) * f.after + c;
    float sums[kRows] = {};
    for (int k = 0; k < f.order; ++k) {
      const float x = row[layout.At(first + k * f.after)];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int y = lane + 32 * i;
        if (y >= f.order) break;
        if (f.entries != nullptr) {
          sums[i] = fmaf(__ldg(f.entries + k * f.order + y), x, sums[i]);
          continue;
        }
        sums[i] += IsNegative(f, y, k) ? -x : x;
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int y = lane + 32 * i;
      if (y < f.order) row[layout.At(first + y * f.after)] = sums[i];
    }
  }
}

// ApplyDense for any factor, in a kernel whose registers suffice for max_steps.
template <int max_steps>
__device__ inline void ApplyDenseUpTo(float* row, RowLayout layout, int width,
                                      const DenseFactor& f) {
  if (f.after % 8 != 0 || f.entries != nullptr) {
    const int order = f.entries == nullptr ? f.order : 0;
    if (order == 12) return ApplyDenseByColumns<12>(row, layout, width, f);
    if (order == 20) return ApplyDenseByColumns<20>(row, layout, width, f);
    return ApplyDenseSlowly(row, layout, width, f);
  }
  if (f.k_steps == 1) return ApplyDense<1>(row, layout, width, f);
  if (f.k_steps == 2) return ApplyDense<2>(row, layout, width, f);
  if constexpr (max_steps >= 4) {
    if (f.k_steps == 3) return ApplyDense<3>(row, layout, width, f);
    if (f.k_steps == 4) return ApplyDense<4>(row, layout, width, f);
  }
  if constexpr (max_steps >= 7) {
    if (f.k_steps == 7) return ApplyDense<7>(row, layout, width, f);
  }
  if constexpr (max_steps >= 11) {
    if (f.k_steps == 11) return ApplyDense<11>(row, layout, width, f);
  }
}

}  // namespace nibble::cuda
