// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/progress.h"
#include "quantize/run/quantize.h"

namespace nibble {

// The stages of a run and the seconds that each will take, from the operations that it has; without
// a measurement, so that only their shares of the whole are close. `loss_tokens`: a caller measures
// the loss on so many afterwards, with KlDivergences.
std::vector<ProgressJob::Stage> ExpectedStages(const ModelConfig& config, const Plan& plan,
                                               const QuantizeOptions& options);

}  // namespace nibble
