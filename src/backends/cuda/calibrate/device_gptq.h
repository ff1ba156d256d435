// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backends/cuda/calibrate/linear_algebra.h"
#include "compute/gptq_math.h"

namespace nibble::cuda {

// Everything in fp64 but the products of calibration, which are sums of products of bf16 terms. The
// Hessian stays on the GPU; grids and codes pass. `algebra` and its stream must live as long.
std::unique_ptr<GptqMath> MakeDeviceGptq(int64_t width, LinearAlgebra& algebra,
                                         cudaStream_t stream);

}  // namespace nibble::cuda
