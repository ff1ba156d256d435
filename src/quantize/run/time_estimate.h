// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quantize/map/rotate.h"
#include "quantize/run/quantize.h"

namespace nibble {

// Seconds that a run will take, from pieces of it run here: a layer is folded and rotated, some of
// its rows are rounded to nearest, and two narrow layers of random weights are calibrated, which
// gives the machine's rates for what the widths of this model need. Takes about as long as one of
// its layers.
double EstimateSeconds(const Network& source, const Plan& plan, const QuantizeOptions& options);

}  // namespace nibble
