// SPDX-License-Identifier: Apache-2.0
// The instruction set of this process's vector ops. Integer kernels are chosen per linear
// (kernel_table.h).
#pragma once

#include "base/cpu_features.h"

namespace nibble::cpu {

// At least kAvx2; before any op runs. Limits Highway's dispatch.
void SelectIsa(Isa isa);
Isa SelectedIsa();

}  // namespace nibble::cpu
