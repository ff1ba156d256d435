// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>
#include <string>

#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

__global__ void Probe() {}

}  // namespace

int KernelCapability() {
  static const int major = [] {
    cudaFuncAttributes attributes;
    CheckCuda(cudaFuncGetAttributes(&attributes, Probe), "this GPU's kernels");
    const int compiled = attributes.ptxVersion / 10;
    const char* lowered = std::getenv("NIBBLE_CUDA_CAPABILITY");
    if (lowered == nullptr) return compiled;
    if (std::strcmp(lowered, "8") == 0) return 8;
    throw Error(ErrorCode::kUsage, std::string("NIBBLE_CUDA_CAPABILITY=") + lowered + ": use 8");
  }();
  return major;
}

}  // namespace nibble::cuda
