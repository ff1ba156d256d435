// SPDX-License-Identifier: Apache-2.0
// The FFN of a mixture of experts (formats/router_spec.h): each expert runs for all tokens that
// were routed to it. A token's outputs are added in the order of experts, so that results do not
// depend on the batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/layer.h"

namespace nibble {

struct Routes {
  struct Expert {
    std::vector<int32_t> rows;   // the tokens that it sees, rising
    std::vector<float> weights;  // of its output in each
  };
  int64_t tokens = 0;
  std::vector<Expert> experts;
};

// The experts with the largest scores, for logits [tokens, experts]; of equal ones the first. bias
// [experts] is added for the choice alone; it may be empty.
Routes ChooseExperts(std::span<const float> logits, int64_t tokens, const RouterSpec& router,
                     std::span<const float> bias = {});
// The experts that `chosen` has, weighed by other logits.
Routes WeighExperts(std::span<const float> logits, const Routes& chosen, const RouterSpec& router);

// Asks the layer's router about x [tokens, hidden]; with `chosen` only for weights. Waits for the
// backend, since what runs next depends on the answer.
Routes RouteTokens(const Decoder& d, const Layer& layer, const float* x, int64_t tokens,
                   const Routes* chosen = nullptr);

// The rows of x [routes.tokens, hidden] that some experts see, one after the other, in
// scratch.rows.
const float* GatherRows(const Decoder& d, std::span<const Routes::Expert> experts, int64_t tokens,
                        const float* x);

// sum += all experts' outputs for x, each times its weight; for backends that have not joined them
// (Backend::JoinExperts), one expert after the other, or of few tokens stage by stage
// (Backend::MultiplyRows), which gives the same bits. sum may be x.
void RunMixture(const Decoder& d, const Layer& layer, const Routes& routes, const float* x,
                float* sum);

}  // namespace nibble
