// SPDX-License-Identifier: Apache-2.0
// The CPU backend: integer products on AVX2, VNNI or AMX (kernel_table.h), everything else in
// Highway.
#pragma once

#include <memory>

#include "base/cpu_features.h"
#include "compute/backend.h"

namespace nibble {

std::unique_ptr<Backend> MakeCpuBackend(Isa isa);  // kAvx2 or better

}  // namespace nibble
