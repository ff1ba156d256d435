// SPDX-License-Identifier: Apache-2.0
// Weights of calibration tokens by what an error of a linear's outputs costs there. KL(float ||
// rounded) grows by about half the sum over tokens t and outputs n of F[t, n] error[t, n]^2, where
// F is the mean of the squared gradient of -log p[y] over what the float network predicts, y ~ p.
//
// GPTQ's Hessian of output n is then X^T diag(F[., n]) X, and neighbouring outputs share the mean
// of theirs (GuidedQuant, Kim et al. 2025, who take the text's next token for y; docs/quality.md).
// One y is drawn for each token.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "compute/dense_math.h"
#include "quantize/recipes/recipe.h"
#include "quantize/walk/stream.h"

namespace nibble {

// Weights of tokens for each layer's linears, [groups, tokens]. What is above kHeaviestToken times
// the mean is cut, so that not a few tokens decide; the mean is then made 1.
using LossWeights = std::vector<ByRole<Matrix<float>>>;

inline constexpr double kHeaviestToken = 4;
// Gradients are taken of pieces of kLossPiece tokens, or of all of a shorter text, kLossPieces at a
// time.
inline constexpr int64_t kLossPiece = 512, kLossPieces = 8;

struct LossWeightTask {
  const ModelConfig& config;
  const Plan& plan;
  Matrix<float> embedding, head;  // [vocab, hidden], of the rotated network
  std::vector<float> final_norm;  // [hidden]; empty where it is folded into the head
  FloatLayers layers;             // the same; each is asked for once
  std::span<const int32_t> ids;
  int64_t groups;
};

// Takes networks that are Differentiable (backprop.h). progress(tokens that are done).
LossWeights FindLossWeights(Backend& backend, const DenseMath& math, const LossWeightTask& task,
                            const std::function<void(double)>& progress);

// The number of Hessians of a set's linears: one, or one for each group of each linear's outputs.
int64_t HessiansOf(const Recipe& recipe, LinearSet set);

// Bytes of the weights themselves, and of the fp32 layers that finding them takes beside
// BackpropBytes(config, kLossPieces, kLossPiece); both in host memory.
double LossWeightBytes(const ModelConfig& config, const Recipe& recipe, int64_t tokens);
double LossLayerBytes(const ModelConfig& config);

}  // namespace nibble
