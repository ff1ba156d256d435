// SPDX-License-Identifier: Apache-2.0
// Perplexity, and the Kullback-Leibler divergence of one model's predictions from another's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model.h"

namespace nibble {

using Windows = std::vector<std::vector<int32_t>>;

struct PerplexityResult {
  double perplexity = 0, nll = 0;  // nll: mean over windows of the mean loss over positions 1..T-1
  int64_t tokens = 0;              // predicted tokens, windows * (context - 1)
  int64_t windows = 0, context = 0;
  double seconds = 0;
  std::vector<double> window_nll;
};
PerplexityResult Perplexity(Model& model, const Windows& windows);

struct KlResult {
  double kl_mean = 0, kl_p99 = 0;  // KL(reference || model) per predicted token, in nats
  double top1_agreement = 0;       // share of tokens with the same most likely next token
  double perplexity = 0, reference_perplexity = 0;
  // Mean loss less the reference's, nats per token, and its standard error over windows, whose
  // tokens share a context; 0 for a single window.
  double loss_difference = 0, loss_difference_stderr = 0;
  int64_t tokens = 0;
};
// Compares several models, for which the reference runs once.
std::vector<KlResult> KlDivergences(std::span<Model* const> models, Model& reference,
                                    const Windows& windows);
KlResult KlDivergence(Model& model, Model& reference, const Windows& windows);

}  // namespace nibble
