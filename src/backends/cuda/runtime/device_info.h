// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// What a program asks of GPUs that includes no header of CUDA.

namespace nibble::cuda {

bool HasDevice();  // the first GPU is one that the kernels run on

// All bytes that this program has asked of GPUs so far, given back or not.
int64_t RequestedDeviceBytes();

}  // namespace nibble::cuda
