// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cli/cli.h"
#include "quantize/run/quantize.h"

namespace nibble::cli {

// Quantizes `options.model` with a few recipes in a temporary directory and prints what each one
// costs as soon as it ends: bytes, seconds, and the loss on `loss_windows` windows that were not
// calibrated on.
void CompareRecipes(QuantizeOptions options, int64_t loss_windows, const Common& common);

}  // namespace nibble::cli
