// SPDX-License-Identifier: Apache-2.0
// OmniQuant (Shao et al. 2023): one layer after the other learns clips of its weights and scales of
// its channels (block_parameters.h). Its output, on the inputs that the rounded network gives it,
// comes close to the float network's: the loss is the mean squared error of a window. Gradients are
// Backprop's, the descent Adam's.
#pragma once

#include <functional>
#include <span>

#include "compute/dense_math.h"
#include "quantize/recipes/recipe.h"
#include "quantize/walk/stream.h"

namespace nibble {

class BlockTraining {
 public:
  // ids: windows of `context` tokens, which have to stay. The network is Differentiable, its
  // linears have neither tails nor gathers nor transforms, and rounded weights are asymmetric
  // integers.
  BlockTraining(Backend& backend, const DenseMath& math, const ModelConfig& config,
                const Recipe& recipe, const Plan& plan, const EmbeddingRows& embedding,
                std::span<const int32_t> ids, int64_t context);

  // Scales and clips the next layer, which rounding to nearest may follow. progress(share) may
  // throw. Returns the loss before the first step and after the last.
  struct Losses {
    double first = 0, last = 0;  // means over windows
  };
  Losses Train(int64_t index, FloatLayer& layer, const std::function<void(double)>& progress);
  // The same layer, or one that an earlier run has finished, as it was rounded.
  void Pass(int64_t index, const LayerWeights& rounded) { rounded_.Pass(rounded, index); }
  // In place of Train: a layer that is finished.
  void Skip(int64_t index, const FloatLayer& layer) { floats_.Pass(StoreFloats(layer), index); }

 private:
  Backend& backend_;
  const DenseMath& math_;
  const ModelConfig& config_;
  const Recipe& recipe_;
  const Plan& plan_;
  int64_t context_;
  Stream floats_, rounded_;
};

}  // namespace nibble
