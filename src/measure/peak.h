// SPDX-License-Identifier: Apache-2.0
// The most that this machine can do, measured now with all threads of the pool.
#pragma once

#include <string_view>
#include <vector>

#include "base/cpu_features.h"

namespace nibble::cpu {

struct Peak {
  std::string_view name;                // "amx int8", "memory read", ...
  double median = 0, min = 0, max = 0;  // operations (a multiplication and an addition are two) or
                                        // bytes per second
};

// Integer products of `isa`.
Peak MeasureIntPeak(Isa isa);

// Integer and fp32 (and bf16) products of `isa`, in this order: int8, fp32, bf16 (AMX only), then
// the memory's read stream over 1 GiB. Takes about two seconds.
std::vector<Peak> MeasurePeaks(Isa isa);

}  // namespace nibble::cpu
