// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/launch.h"

namespace nibble::cuda {
namespace {

__global__ void Probe() {}

}  // namespace

int KernelCapability() {
  static const int major = [] {
    cudaFuncAttributes attributes;
    CheckCuda(cudaFuncGetAttributes(&attributes, Probe), "this GPU's kernels");
    return attributes.ptxVersion / 10;
  }();
  return major;
}

}  // namespace nibble::cuda
