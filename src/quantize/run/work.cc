// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/work.h"

#include "quantize/walk/loss_weights.h"

namespace nibble {

Work WorkOf(const ModelConfig& c, const Recipe& recipe) {
  const double streams = recipe.gptaq > 0 ? 2 : 1;
  const double routed = c.router.experts == 0 ? 1
                                              : static_cast<double>(c.router.experts_per_token) /
                                                    static_cast<double>(c.router.experts);
  // GPTQ's loop and the two sums of its loss; a sweep; the correction of GPTAQ.
  const double passes = 3 + 2.0 * recipe.sweeps + (recipe.gptaq > 0 ? 4 : 0);
  const int64_t last = c.layers - 1;
  Work work = {.attention = streams * 4 * static_cast<double>(c.outputs(last, Role::kQ))};
  for (LinearSet set : LinearSets(c, last)) {
    const double share = set.expert < 0 || set.expert >= c.router.experts ? 1 : routed;
    const auto k = static_cast<double>(c.inputs(last, RolesOf(set)[0]));
    const auto sums = static_cast<double>(HessiansOf(recipe, set));
    work.gram += sums * share * k * k * (recipe.gptaq > 0 ? 3 : 1);
    work.rounding += sums * k * k * k;
    for (Role role : RolesOf(set)) {
      const auto weights = static_cast<double>(c.outputs(last, role)) * k;
      work.linear += streams * 2 * share * weights;
      work.weights += weights;
      work.rounding += passes * weights * k;
    }
  }
  return work;
}

}  // namespace nibble
