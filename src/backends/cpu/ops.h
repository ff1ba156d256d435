// SPDX-License-Identifier: Apache-2.0
// Vector ops of the CPU backend, written once with Highway and compiled for AVX2 and AVX-512; isa
// says which of them runs (dispatch.h), and is at least kAvx2. Every
// function handles rows (tokens) independently and in a fixed order of operations, and spreads rows
// over the thread pool, so results do not depend on batch size or thread count.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "backends/cpu/gemm/int_kernels.h"
#include "backends/interface/backend.h"
#include "base/aligned.h"
#include "base/cpu_features.h"

namespace nibble::cpu {

// --- activations.cc -----------------------------------------------------------------------------

// Grow-only memory of prepared activations: no allocation once the largest batch was seen.
struct ActsMemory {
  Buffer<float> values, scales, zero_offsets;
  Buffer<int8_t> codes, tiles;
  Buffer<int32_t> sums;
};
struct ActsWorkspace {
  ActsMemory main, tail;
  Activations tail_acts;  // of the last call
};
// A row's codes inside [tokens / 16][stride / 64][16][64], the A tiles of a matrix unit: a tile
// lies in one piece, where 16 rows of codes would lie in 16 pages.
inline constexpr int64_t kTileTokens = 16;
inline void StoreTileRow(const int8_t* codes, int64_t token, int64_t stride, int8_t* tiles) {
  int8_t* out = tiles + token / kTileTokens * kTileTokens * stride + token % kTileTokens * 64;
  for (int64_t k = 0; k < stride; k += 64, out += kTileTokens * 64) std::memcpy(out, codes + k, 64);
}
// The codes are those of QuantizeActivations (formats/quantizer.h) bit for bit. With 16-bit
// activations `values` points to x or into `work`. `tiles`: fill Activations::tiles.
Activations PrepareActs(Isa isa, const ActsSource& source, int64_t tokens, const InputSpec& spec,
                        bool tiles, ActsWorkspace& work);

// --- planes.cc ----------------------------------------------------------------------------------

// Splits prepared 16-bit activations into codes of two planes, rows [2 tokens, stride] and sums: a
// token's row of upper bytes, then its row of lower bytes. A token has one scale.
Activations SplitPlanes(Isa isa, const Activations& acts, bool tiles, ActsMemory& memory);

// --- rope_append.cc -----------------------------------------------------------------------------

void RopeAndAppend(Isa isa, float* q, float* k, const float* v, const AttentionSpec& attention,
                   const RopeView& rope, const KvSpec& kv, std::span<const SequenceSlice> batch);

// --- attention.cc -------------------------------------------------------------------------------

// Backend::Attention; AMX runs it on matrix tiles where the cache's format allows that
// (attention_tiles.h).
void Attention(Isa isa, const float* q, const AttentionSpec& attention, const KvSpec& kv,
               std::span<const SequenceSlice> batch, float* out);

// --- gemm_f32.cc --------------------------------------------------------------------------------

// fp32 weights in panels of kPanelF32 outputs: [panel][k][kPanelF32], the last panel zero filled.
inline constexpr int64_t kPanelF32 = kTileOutputs;
struct PanelsF32 {
  int64_t rows = 0, cols = 0;  // N, K
  std::vector<float> data;
};
PanelsF32 PackF32(const Matrix<float>& weights);
// Packs straight from any float type (bf16 checkpoints are never expanded twice).
PanelsF32 PackF32(const Tensor& weights);

// y[t, n] (+)= sum_k x[t, k] w[n, k] + bias[n]: one chain of fused multiply-adds over ascending k
// per output, so a row has the same bits in any batch. bias may be null. y has row stride y_stride.
void GemmF32(Isa isa, const float* x, int64_t tokens, const PanelsF32& weights, const float* bias,
             float* y, int64_t y_stride, bool accumulate);

// --- gemm_bf16.cc -------------------------------------------------------------------------------

// Wide weights as bf16 tiles for AMX: [panel of kPanelF32 outputs][32 inputs][term][2 x 16 outputs]
// [16 pairs of inputs][16 outputs][2]. One term where the weights are bf16, else two.
struct PanelsBf16 {
  int64_t rows = 0, cols = 0, padded_cols = 0;  // N, K
  int64_t terms = 1;
  AlignedBytes data{};

  int64_t panel_values() const { return padded_cols * kPanelF32 * terms; }
  uint16_t* values() const { return reinterpret_cast<uint16_t*>(data.get()); }
};
PanelsBf16 PackBf16(const Tensor& weights);

// GemmF32 on AMX: exact products of bf16 weights and fp32 inputs, or of 16-bit terms of both,
// summed in fp32 in an order that depends on K alone.
void GemmBf16(const float* x, int64_t tokens, const PanelsBf16& weights, const float* bias,
              float* y, int64_t y_stride, bool accumulate);

// --- gram_bf16.cc -------------------------------------------------------------------------------

// MathServices::AddGram on AMX: two bf16 terms of each factor, three products.
void AddGramBf16(const float* left, const float* right, int64_t tokens, int64_t width, double* sum);

// --- gram_pairs.cc ------------------------------------------------------------------------------

// MathServices::AddGram of inputs rounded to bf16, with AVX-512 BF16.
void AddGramPairs(const float* left, const float* right, int64_t tokens, int64_t width,
                  double* sum);

}  // namespace nibble::cpu
