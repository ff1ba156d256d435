// SPDX-License-Identifier: Apache-2.0
// The choice of a mixture's experts for the tokens of a step, and the tokens' rows expert by
// expert. All of it is made in device memory, so that the program need not wait and steps can be
// recorded.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/gemm/gemm.h"
#include "formats/router_spec.h"

namespace nibble::cuda {

inline constexpr int64_t kMaxRoutedExperts = 512;

struct RouteArguments {
  RouterSpec router;
  int64_t tokens = 0;
  int group_rows = 0;             // most rows of an ExpertGroup
  const float* logits = nullptr;  // [tokens, experts]
  const float* bias = nullptr;    // [experts] added for the choice alone, or null
  const float* scales = nullptr;  // [experts] factors of weights, or null

  // Results, [tokens, of_token()]: each token's experts in ascending order, their weights and rows.
  int32_t* experts = nullptr;  // working memory
  float* weights = nullptr;
  int32_t* places = nullptr;
  int32_t* row_tokens = nullptr;  // [rows()], the token of each row
  ExpertGroup* groups = nullptr;  // [max_groups()]
  int32_t* group_count = nullptr;

  // RouterSpec's functions, for kernels.
  __host__ __device__ int64_t of_token() const { return router.experts_per_token + router.shared; }
  __host__ __device__ int64_t all() const { return router.experts + router.shared; }
  __host__ __device__ int64_t rows() const { return tokens * of_token(); }
  int64_t max_groups() const;
};

// Chooses as engine/mixture.h does, whose sums of exponentials are in another order. Rows of one
// expert are in the order of tokens.
void Route(const RouteArguments& arguments, cudaStream_t stream);

// Prepared rows with one scale each (acts/prepare_acts.h): of tokens, or gathered for experts.
struct PreparedRows {
  int8_t* codes = nullptr;  // [.., stride]
  float* scales = nullptr;
  float* zero_offsets = nullptr;  // or null
  int32_t* sums = nullptr;
};
// to[row] = from[row_tokens[row]]
void GatherRows(const PreparedRows& from, const int32_t* row_tokens, int64_t rows, int64_t stride,
                const PreparedRows& to, cudaStream_t stream);

// x[t] += weights[t, i] * y[places[t, i]] for one i after the other; x [tokens, width],
// y [rows, width], width even.
void AddExperts(const RouteArguments& routes, const void* y, RealType type, int64_t width, float* x,
                cudaStream_t stream);

}  // namespace nibble::cuda
