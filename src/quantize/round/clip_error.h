// SPDX-License-Identifier: Apache-2.0
// The error that the search for a grid's clip makes smallest.
#pragma once

#include <span>

#include "quantize/round/weight_grid.h"

namespace nibble {

// Sum over the values of |error|^2.4 once rounded to the grid; given up (any value >= limit) as
// soon as it reaches limit.
float ClipError(std::span<const float> values, const WeightGrid& grid, float limit);
// The same of error^2.
float SquaredClipError(std::span<const float> values, const WeightGrid& grid, float limit);

}  // namespace nibble
