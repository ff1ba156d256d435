// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace nibble::cuda {

// All bytes that this program has asked of GPUs so far, given back or not.
int64_t RequestedDeviceBytes();

}  // namespace nibble::cuda
