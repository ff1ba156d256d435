// SPDX-License-Identifier: Apache-2.0
// The inputs that the layers of Gemma 4's smaller models get for a token beside the residual
// stream: each a row of a table of its own, and a part of what a linear makes of the token's
// embedding.
#pragma once

#include <span>

#include "base/aligned.h"
#include "compute/backend.h"
#include "models/network.h"

namespace nibble {

class LayerInputs {
 public:
  // Takes the network's projection over; one without these inputs has none.
  LayerInputs(Backend& backend, const Network& network);
  ~LayerInputs();
  LayerInputs(const LayerInputs&) = delete;
  LayerInputs& operator=(const LayerInputs&) = delete;

  // The inputs for the tokens `ids`, whose scaled embeddings are x [ids.size(), hidden] in the
  // backend's memory: intermediate values [layers][ids.size()][layer_input_size], valid until the
  // next call; null if the network has none.
  //   (RMS norm(projection(x) / sqrt(hidden)) * weight + sqrt(layer_input_size) * row) / sqrt(2)
  const Intermediate* Make(std::span<const int32_t> ids, const float* x);
  // The part of `all` that one layer gets.
  const Intermediate* Part(const Intermediate* all, int64_t layer, int64_t tokens) const;

 private:
  Backend& backend_;
  const ModelConfig& config_;
  AlignedBytes table_memory_;
  PackedWeights table_;  // [vocab * layers, layer_input_size]
  LinearId projection_ = {};
  InputSpec input_;
  Buffer<float> weight_;  // divided by sqrt(2)
  Buffer<float> projected_, rows_;
  Buffer<Intermediate> made_;
};

}  // namespace nibble
