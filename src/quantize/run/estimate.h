// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quantize/run/quantize.h"

namespace nibble {

constexpr double kProgramBytes = 128e6;        // of memory, whatever it does
constexpr double kDeviceProgramBytes = 450e6;  // of a GPU's, libraries included

// Estimates what the run takes, from the shapes; its time is left open (expected_stages.h).
QuantizeEstimate EstimateQuantization(const ModelConfig& config, const Plan& plan,
                                      const QuantizeOptions& options);

// Throws when memory or disk for the estimate is not there.
void RequireResources(const QuantizeEstimate& estimate, const QuantizeOptions& options);

// Bytes that the run may use: what it was given, or what the machine has without swapping.
double MemoryLimit(const QuantizeOptions& options);

// Bytes in which layers stay from pass to pass (KeepLayers): half of what the run leaves free.
double KeptBytes(const QuantizeEstimate& estimate, const QuantizeOptions& options);

}  // namespace nibble
