// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quantize/quantize.h"

namespace nibble {

// What the run will take, from the shapes and a short measurement of this machine's matrix product.
QuantizeEstimate EstimateQuantization(const ModelConfig& config, const Plan& plan,
                                      const QuantizeOptions& options);

// Throws when memory or disk for the estimate is not there.
void RequireResources(const QuantizeEstimate& estimate, const QuantizeOptions& options);

// Bytes that the machine can give without swapping.
uint64_t AvailableMemory();

}  // namespace nibble
