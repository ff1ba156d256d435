// SPDX-License-Identifier: Apache-2.0
// What rounding column by column shares (round_gptq.cc, round_device.cc, sweep.cc).
#pragma once

#include <span>
#include <vector>

#include "quantize/code_matrix.h"
#include "quantize/round.h"

namespace nibble {

using Order = std::vector<int64_t>;  // order[i] = original column of the i-th rounded one

// By falling Hessian diagonal, or as the columns are; the last `tail` stay where they are.
Order ColumnOrder(std::span<const double> diagonal, bool act_order, int64_t tail = 0);

// y += factor * x, with the machine's vectors and the same bits on every machine.
void AddScaled(double factor, std::span<const double> x, double* y);

// Whether all grids are found before rounding; if not, each when its group begins.
bool FixedGrids(const FormatSpec& format, const GptqOptions& options);

// The next damping to try when a Hessian cannot be factored with `damp`. Throws when that is large.
double MoreDamping(double damp);

}  // namespace nibble
