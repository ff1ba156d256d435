// SPDX-License-Identifier: Apache-2.0
// Chooses the layers whose keys or values do with four bits in the cache where the plan has more.
// The cost of each part is measured, not estimated: the rounded weights predict a text with that
// part alone in four bits, and the divergence from their predictions with a cache in fp32 is the
// cost.
//
// Activations are not rounded meanwhile: their codes would change at random behind any change,
// which costs more than most parts do. So costs add up, and the cheapest parts are taken until
// together they cost what the recipe allows.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "models/plan.h"
#include "quantize/recipes/recipe.h"

namespace nibble {

struct CacheChoice {
  int64_t parts = 0;     // keys or values of a layer, with more than four bits in the plan
  int64_t narrow = 0;    // of them, with four now
  double loss = 0;       // KL in nats per token of all narrow ones together
  std::string unchosen;  // why none was tried; empty otherwise
};

// Tokens that a choice runs through the model, and memory for their cache and predictions, beside
// that for the checkpoint.
int64_t CacheChoiceTokens(const ModelConfig& config, const Plan& plan);
double CacheChoiceBytes(const ModelConfig& config);

// Sets plan.layer_caches so that they cost at most `most` nats per token. checkpoint: the directory
// of a quantized model with this plan. ids: windows of `context` tokens, of which the first ones
// are read; progress(share done) may throw. Throws where logits are not finite.
CacheChoice ChooseCaches(const std::string& checkpoint, const std::string& device, double max,
                         std::span<const int32_t> ids, int64_t context, Plan& plan,
                         const std::function<void(double)>& progress);

}  // namespace nibble
