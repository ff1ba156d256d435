// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/progress.h"
#include "quantize/run/quantize.h"

namespace nibble {

// The stages of a run and the seconds that each will take: the operations that it has, at the rates
// of two machines. On others their shares of the whole are close.
std::vector<ProgressJob::Stage> ExpectedStages(const ModelConfig& config, const Plan& plan,
                                               const QuantizeOptions& options);

}  // namespace nibble
