// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backends/interface/backend.h"

namespace nibble {

// The CPU's, whose products of floats keep all 24 bits: without AMX, which takes 16 of them.
std::unique_ptr<Backend> MakeExactBackend();

}  // namespace nibble
