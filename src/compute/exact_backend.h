// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "compute/backend.h"

namespace nibble {

// A CPU backend whose products of floats keep all 24 bits: it leaves out AMX, which takes 16.
std::unique_ptr<Backend> MakeExactBackend();

}  // namespace nibble
