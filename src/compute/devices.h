// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace nibble {

// Returns whether "--device cuda:0" would run: this program has kernels for GPUs, and the first GPU
// of the machine is one that they run on. Takes no memory of it.
bool HasGpu();

}  // namespace nibble
