// SPDX-License-Identifier: Apache-2.0
// The activations of decode linears (gemm_decode.cu), which stay in shared memory, and their
// products with the weights of a WeightRing.
#pragma once

#include "backends/cuda/gemm/decode_ring.cuh"
#include "backends/cuda/gemm/sum_scale.cuh"

namespace nibble::cuda::decode {

// The tokens' scales and zero offsets, and the columns' sums of codes, in shared memory.
template <typename S>
struct TokenParameters {
  float scales[8 * S::kTiles], zero_offsets[8 * S::kTiles];
  int32_t sums[8 * S::kTiles];
};

// The row of x of a column: the planes of a token lie side by side.
template <typename S>
__device__ int64_t RowOf(const GemmArguments& g, int column) {
  if constexpr (S::kExperts) {
    return g.experts.row_tokens == nullptr ? column : g.experts.row_tokens[column];
  }
  return g.planes() ? PlaneRow(column / 2) + column % 2 * 8 : column;
}

// All codes of a block's inputs: [columns][pitch]. Behind them, where tokens have groups,
// the scales and zero offsets of their pieces: [pieces][2][columns].
template <typename S>
struct Activations {
  static constexpr int kColumns = 8 * S::kTiles;

  uint32_t memory;
  int pitch;  // an odd number of 16-byte units: ldmatrix has no bank conflicts
  uint32_t scales;

  __host__ __device__ static int Pitch(int inputs) { return inputs + 16; }
  // Bytes for `blocks` times 128 inputs.
  static int Bytes(const GemmArguments& g, int blocks) {
    const int pieces = g.x_group == 0 ? 0 : blocks * 128 / g.piece;
    return Rows(g) * Pitch(blocks * 128) + pieces * 2 * kColumns * int{sizeof(float)};
  }
  // Columns past the end have memory of their own (nobody stores their sums), except where that
  // would be most of the memory: in a lone tile they repeat the last column.
  __host__ __device__ static int Rows(const GemmArguments& g) {
    return S::kTiles == 1 ? g.columns() : kColumns;
  }

  // Fetches the activations through registers: waiting for an asynchronous copy would also wait for
  // all weights requested before it.
  __device__ Activations(const GemmArguments& g, const Slice& slice, uint32_t shared,
                         TokenParameters<S>& parameters)
      : memory(shared), pitch(Pitch(slice.bytes())), scales(shared + Rows(g) * pitch) {
    const int t = static_cast<int>(threadIdx.x);
    float scale = 1, zero_offset = 0;
    int32_t sum = 0;
    if (t < g.tokens && !S::kTokenScales) {
      const int64_t row = S::kExperts ? RowOf<S>(g, t) : t;
      scale = g.x_scales[row];
      if (g.x_zero_offsets != nullptr) zero_offset = g.x_zero_offsets[row];
    }
    const bool with_sums = S::kLevels || g.w_zeros != nullptr;
    if (t < g.columns() && with_sums) sum = g.x_sums[RowOf<S>(g, t)];
    constexpr int kBatch = S::kTiles == 1 ? 4 : 8;  // loads under way at once
    const int8_t* const x = g.x + slice.begin * 128;
    const unsigned units = slice.bytes() / 16, count = units * static_cast<unsigned>(g.columns());
    for (unsigned base = threadIdx.x; base < count; base += kBatch * S::kThreads) {
      uint4 v[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const unsigned i = base + j * S::kThreads, column = i / units, at = i % units * 16;
        if (i >= count) continue;
        v[j] = *reinterpret_cast<const uint4*>(x + RowOf<S>(g, column) * g.stride + at);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const unsigned i = base + j * S::kThreads, column = i / units, at = i % units * 16;
        if (i < count) StoreUnit(memory + column * pitch, at, v[j]);
      }
    }
    if constexpr (S::kTokenScales) FetchScales(g, slice);
    if (t < g.columns()) {
      parameters.scales[t] = scale;
      parameters.zero_offsets[t] = zero_offset;
      parameters.sums[t] = sum;
    }
    __syncthreads();
  }

  // Stores 16 bytes of a column. For codewords the first four of each eight inputs come first in a
  // step of 32, so that a lane's operand B has the inputs of its code's weights.
  static __device__ void StoreUnit(uint32_t column, unsigned at, const uint4& v) {
    if constexpr (S::kCodewordBits == 0) {
      StoreShared16(column + at, v);
    } else {
      const uint32_t to = column + (at & ~31u) + at % 32 / 2;
      StoreShared8(to, {v.x, v.z});
      StoreShared8(to + 16, {v.y, v.w});
    }
  }

  // Fetches the scales and zero offsets of the tokens' groups: 0 behind the last token or input.
  __device__ void FetchScales(const GemmArguments& g, const Slice& slice) const {
    const int count = slice.bytes() / g.piece * kColumns;
    for (int i = threadIdx.x; i < count; i += S::kThreads) {
      const int t = i % kColumns, input = slice.begin * 128 + i / kColumns * g.piece;
      const bool exists = t < g.tokens && input < g.cols;
      const int64_t at = exists ? input / static_cast<int>(g.x_group) * g.x_pitch + t : 0;
      const uint32_t to = scales + (i / kColumns * 2 * kColumns + t) * 4;
      StoreShared4(to, exists ? g.x_scales[at] : 0);
      StoreShared4(to + kColumns * 4,
                   exists && g.x_zero_offsets != nullptr ? g.x_zero_offsets[at] : 0);
    }
  }

  // This lane's address for LoadMatrices at the first block. Lanes 0 to 15 address the halves of
  // one operand B, the others those of the next: of the next tile, or step if the tile is alone.
  __device__ uint32_t LaneAddress(int columns) const {
    const int lane = threadIdx.x % 32, column = lane % 8, half = lane / 8 % 2, next = lane / 16;
    if constexpr (S::kTiles == 1) {
      return memory + min(column, columns - 1) * pitch + next * 32 + half * 16;
    }
    return memory + (column + 8 * next) * pitch + half * 16;
  }
};

// Sums of one warp: operand D of mma.m16n8k32. With few tiles there are several chains of sums, so
// that a product need not wait for the one before.
template <typename S>
struct IntegerSums {
  static constexpr int kChains = S::kTiles == 1 ? 4 : S::kTiles == 2 ? 2 : 1;
  int32_t d[kChains][S::kTiles][4] = {};

  __device__ int32_t Total(int tile, int i) const {
    int32_t total = 0;
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) total += d[chain][tile][i];
    return total;
  }
};

// Sums for groups: y over all pieces, and those of one piece in up to two chains.
template <typename S>
struct GroupSums {
  static constexpr int kChains = S::kPieceSteps > 1 && S::kTiles == 1 ? 2 : 1;
  float y[S::kTiles][4] = {};
  int32_t d[kChains][S::kTiles][4];

  __device__ float Total(int tile, int i) const { return y[tile][i]; }
};

template <typename S>
using Sums = std::conditional_t<S::kGroups, GroupSums<S>, IntegerSums<S>>;

// The groups of tokens in a piece: the address of its columns' scales, and whether there are zero
// offsets.
struct TokenScales {
  uint32_t at;
  bool zero_offsets;
};

// y += the piece's sums times its scales. `code_sums`: a lane's share of the sums of codes of its
// two outputs, used where tokens have zero offsets; 0 afterwards.
template <typename S>
__device__ __forceinline__ void AddPiece(GroupSums<S>& sums, float2 scales,
                                         const TokenScales& tokens, int (&code_sums)[2]) {
  const SumScale weights[2] = {SumScale(scales.x), SumScale(scales.y)};
  float centred[2];
  if (S::kTokenScales && tokens.zero_offsets) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      code_sums[h] += __shfl_xor_sync(0xFFFFFFFF, code_sums[h], 1);
      code_sums[h] += __shfl_xor_sync(0xFFFFFFFF, code_sums[h], 2);
      centred[h] = weights[h].Times(code_sums[h]);
      code_sums[h] = 0;
    }
  }
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
    const uint32_t at = tokens.at + tile * 32 + threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int32_t sum = sums.d[0][tile][i];
      if constexpr (GroupSums<S>::kChains == 2) sum += sums.d[1][tile][i];
      float term = weights[i / 2].Times(sum);
      if constexpr (!S::kTokenScales) {
        sums.y[tile][i] += term;
      } else {
        const uint32_t column = at + i % 2 * 4;
        if (tokens.zero_offsets) {
          const float zero_offset = __uint_as_float(LoadShared4(column + 32 * S::kTiles));
          term = fmaf(zero_offset, centred[i / 2], term);
        }
        sums.y[tile][i] = fmaf(term, __uint_as_float(LoadShared4(column)), sums.y[tile][i]);
      }
    }
  }
}

// Multiplies the ring's `stages` oldest stages, the first of them block `block` of the slice.
template <int stages, Widening widening, typename S>
__device__ __forceinline__ void MultiplyStages(const WeightRing<S>& ring, const GemmArguments& g,
                                               const Activations<S>& acts, uint32_t lane_address,
                                               int block, const CodewordsOf<S>& codewords,
                                               Sums<S>& sums) {
  const bool zero_offsets = S::kTokenScales && g.x_zero_offsets != nullptr;
  const int pieces = S::kTokenScales ? 128 / g.piece : 1;
#pragma unroll
  for (int stage = 0; stage < stages; ++stage) {
    const int at = block + stage * S::kSplits;
    const uint32_t x = lane_address + at * 128;
    uint4 word;
    LevelSteps steps;
    CodewordCodes<S::kCodewordBits> codes;
    if constexpr (S::kCodewordBits != 0) codes = ring.Codewords(stage);
    constexpr bool kUnsigned = widening == Widening::kUnsigned;
    constexpr bool kSteps = widening == Widening::kSteps || kUnsigned;
    if constexpr (kSteps && !S::kFine) steps = ring.Steps(stage, 0);
    uint32_t a[4], b[4];
    int code_sums[2] = {};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if constexpr (S::kCodewordBits != 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const auto [codeword, rest] = codewords.Find(codes, step, h);
          a[h] = CodewordBytes<S::kCodewordBits, SumFactor(S::kKind)>(codeword, rest, 0);
          a[2 + h] = CodewordBytes<S::kCodewordBits, SumFactor(S::kKind)>(codeword, rest, 4);
        }
      } else {
        if (S::kBits == 8 || step % 2 == 0) word = ring.Word(stage, step * S::kBits / 8);
        if constexpr (kSteps && S::kFine) {  // groups of 64 have one for two steps
          if (step % 2 == 0 || ring.blocks().pieces == 4) steps = ring.Steps(stage, step);
        }
        Fragment<S::kBits, widening>(word, steps, step, a);
      }
      constexpr int kChains = Sums<S>::kChains;
      const bool starts = S::kGroups && step % S::kPieceSteps < kChains;  // new sums
      auto& d = sums.d[(S::kGroups ? step : 2 * stage + step % 2) % kChains];
      const auto multiply = [&](int tile, uint32_t b0, uint32_t b1) {
        if constexpr (kUnsigned) return MmaU8S8(d[tile], a, b0, b1);
        starts ? MmaS8(d[tile], a, b0, b1, {}) : MmaS8(d[tile], a, b0, b1);
      };
      if constexpr (S::kTiles == 1) {
        if (step % 2 == 0) LoadMatrices(x + step * 32, b);
        multiply(0, b[step % 2 * 2], b[step % 2 * 2 + 1]);
      } else {
#pragma unroll
        for (int tile = 0; tile < S::kTiles; tile += 2) {
          LoadMatrices(x + tile * 8 * acts.pitch + step * 32, b);
          multiply(tile, b[0], b[1]);
          multiply(tile + 1, b[2], b[3]);
        }
      }
      if constexpr (S::kGroups) {
        if (zero_offsets) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            code_sums[i % 2] = __dp4a(static_cast<int>(a[i]), 0x01010101, code_sums[i % 2]);
          }
        }
        if ((step + 1) % S::kPieceSteps != 0) continue;
        const int piece = S::kTokenScales ? at * pieces + step * pieces / 4 : 0;
        AddPiece(sums, ring.Scales(stage, step),
                 {acts.scales + piece * 2 * Activations<S>::kColumns * 4, zero_offsets}, code_sums);
      }
    }
  }
}

// The same for sparse codes: a step has 64 inputs, of which 32 have codes.
template <int stages, typename S>
__device__ __forceinline__ void MultiplySparseStages(const WeightRing<S>& ring,
                                                     const Activations<S>& acts,
                                                     uint32_t lane_address, int block,
                                                     Sums<S>& sums) {
#pragma unroll
  for (int stage = 0; stage < stages; ++stage) {
    const uint32_t x = lane_address + (block + stage * S::kSplits) * 128;
    const uint2 places = ring.Rest(stage);
    uint4 word;
    uint32_t a[4], b[2][4];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      if (S::kBits == 8 || step == 0) word = ring.Word(stage, step * S::kBits / 8);
      Fragment<S::kBits>(word, {}, step, a);
      const uint32_t places_of = step == 0 ? places.x : places.y;
      auto& d = sums.d[(2 * stage + step) % Sums<S>::kChains];
      if constexpr (S::kTiles == 1) {
        LoadMatrices(x + step * 64, b[0]);
        MmaSparseS8(d[0], a, b[0][0], b[0][1], b[0][2], b[0][3], places_of);
      } else {
#pragma unroll
        for (int tile = 0; tile < S::kTiles; tile += 2) {
          const uint32_t at = x + tile * 8 * acts.pitch + step * 64;
          LoadMatrices(at, b[0]);
          LoadMatrices(at + 32, b[1]);
          MmaSparseS8(d[tile], a, b[0][0], b[0][1], b[1][0], b[1][1], places_of);
          MmaSparseS8(d[tile + 1], a, b[0][2], b[0][3], b[1][2], b[1][3], places_of);
        }
      }
    }
  }
}

template <int stages, typename S>
__device__ void Multiply(WeightRing<S>& ring, const GemmArguments& g, const Activations<S>& acts,
                         uint32_t lane_address, int block, const CodewordsOf<S>& codewords,
                         Sums<S>& sums) {
  ring.template Await<stages>();
  if constexpr (S::kSparse) {
    MultiplySparseStages<stages>(ring, acts, lane_address, block, sums);
  } else {
    WithWidening<S::kKind, Widening::kUnsigned>(ring.blocks(), [&]<Widening widening>() {
      MultiplyStages<stages, widening>(ring, g, acts, lane_address, block, codewords, sums);
    });
  }
#pragma unroll
  for (int stage = 0; stage < stages; ++stage) ring.Request();
}

}  // namespace nibble::cuda::decode
