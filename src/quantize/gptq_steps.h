// SPDX-License-Identifier: Apache-2.0
// What GPTQ decides before it rounds, wherever it runs (round_gptq.cc, round_device.cc).
#pragma once

#include <span>
#include <vector>

#include "quantize/code_matrix.h"
#include "quantize/round.h"

namespace nibble {

using Order = std::vector<int64_t>;  // order[i] = original column of the i-th rounded one

// By falling Hessian diagonal, or as the columns are; the last `tail` stay where they are.
Order ColumnOrder(std::span<const double> diagonal, bool act_order, int64_t tail = 0);

// Whether all grids are found before rounding; if not, each when its group begins.
bool FixedGrids(const FormatSpec& format, const GptqOptions& options);

// The next damping to try when a Hessian cannot be factored with `damp`. Throws when that is large.
double MoreDamping(double damp);

}  // namespace nibble
