// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cli/cli.h"
#include "quantize/quantize.h"

namespace nibble::cli {

// Windows of calibration that a comparison takes at most: enough to put recipes in order.
inline constexpr int64_t kCompareWindows = 8;

// Quantizes `options.model` with a few recipes in a temporary directory and prints what each one
// costs: bytes, seconds, and the loss on `loss_windows` windows that were not calibrated on.
void CompareRecipes(QuantizeOptions options, int64_t loss_windows, const Common& common);

}  // namespace nibble::cli
