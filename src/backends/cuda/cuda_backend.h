// SPDX-License-Identifier: Apache-2.0
// The CUDA backend, for GPUs of compute capability 8.0 or newer: integer products on tensor cores,
// activations and attention in one kernel each. All ops of a backend run in order on one stream of
// its own; Read waits for them.
#pragma once

#include <memory>
#include <string>

#include "compute/backend.h"

namespace nibble {

// device: "cuda" or "cuda:N". Throws as cuda::SelectDevice does.
std::unique_ptr<Backend> MakeCudaBackend(const std::string& device);

}  // namespace nibble
