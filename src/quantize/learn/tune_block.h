// SPDX-License-Identifier: Apache-2.0
// QuIP#'s fine-tuning within blocks (Tseng et al. 2024, section 5, algorithm 5): each time that
// linears of a layer have been rounded, the others' float weights are tuned, and the scales of
// those linears (of rows, and of what they read behind a norm).
//
// The layer's output comes close to the float network's: the loss is the mean squared error.
// Gradients are Backprop's, the descent Adam's.
//
// The paper tunes a layer on what the float network gives it. Here it is what the rounded one
// does, so that a layer makes up for those before (docs/quality.md).
#pragma once

#include <functional>
#include <span>

#include "compute/dense_math.h"
#include "quantize/recipes/recipe.h"
#include "quantize/walk/stream.h"

namespace nibble {

class BlockTuning {
 public:
  // ids: two or more windows of `context` tokens, which have to stay; some, the last ones, are held
  // out. The network is Differentiable, and its linears have neither tails nor gathers.
  BlockTuning(Backend& backend, const DenseMath& math, const ModelConfig& config,
              const Recipe& recipe, const Plan& plan, const EmbeddingRows& embedding,
              std::span<const int32_t> ids, int64_t context);

  // Begins the next layer, which is in floats as yet.
  void Begin(int64_t index, const FloatLayer& layer);
  // Tunes the layer after `set` has been rounded: changes the weights in `rest` of sets behind it,
  // and the scales in `stored` of the set's own. Nothing changes where that does not lower the loss
  // on held-out windows. progress(share) may throw.
  //
  // Returns the losses on held-out windows before and after; 0 behind the last set, where there are
  // no weights left to tune.
  struct Losses {
    double first = 0, last = 0;
  };
  Losses Tune(LinearSet set, FloatLayer& rest, LayerWeights& stored,
              const std::function<void(double)>& progress);
  // The same layer, or one that an earlier run has finished, as it was rounded.
  void Pass(const LayerWeights& rounded) { rounded_.Pass(rounded, index_); }

 private:
  Backend& backend_;
  const DenseMath& math_;
  const ModelConfig& config_;
  const Recipe& recipe_;
  const Plan& plan_;
  int64_t context_, index_ = 0;
  Stream floats_, rounded_;
};

// Bytes of a step in the backend's memory, beside two streams.
double BlockTuningBytes(const ModelConfig& config, int64_t context);

}  // namespace nibble
