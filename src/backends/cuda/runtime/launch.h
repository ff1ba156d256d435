// SPDX-License-Identifier: Apache-2.0
// Kernel launches, and the properties of the device that they depend on.
#pragma once

#include "backends/cuda/runtime/cuda_error.h"

namespace nibble::cuda {

// The compute capability, without its fraction, that the kernels in use were compiled for: the
// GPU's, or an older one where the driver compiles their PTX (cmake/cuda.cmake). The first GPU that
// is asked for decides for the program. NIBBLE_CUDA_CAPABILITY=8 lowers it. Throws if there are no
// kernels for it.
int KernelCapability();

struct Device {
  int multiprocessors, major;                     // KernelCapability()
  int shared_bytes, multiprocessor_shared_bytes;  // most of a block; of all blocks

  // The calling thread's GPU. Throws nibble::Error if there is none.
  static Device Current() {
    int device = 0;
    CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
    const auto get = [&](cudaDeviceAttr attribute) {
      int value = 0;
      CheckCuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
      return value;
    };
    return {.multiprocessors = get(cudaDevAttrMultiProcessorCount),
            .major = KernelCapability(),
            .shared_bytes = get(cudaDevAttrMaxSharedMemoryPerBlockOptin),
            .multiprocessor_shared_bytes = get(cudaDevAttrMaxSharedMemoryPerMultiprocessor)};
  }
};

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic
  unsigned cluster = 1;     // blocks, along x; 1 before sm_90
};

// Allows a kernel `bytes` of dynamic shared memory. Up to 48 KiB, with its static shared memory,
// are always allowed.
template <typename... Arguments>
void AllowShared(void (*kernel)(Arguments...), size_t bytes) {
  constexpr size_t kSurelyAllowed = 32 * 1024;
  if (bytes <= kSurelyAllowed) return;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes)),
            "cudaFuncSetAttribute");
}

// The number of clusters of the shape that the GPU runs at a time. Needs sm_90.
template <typename... Arguments>
int MaxClusters(void (*kernel)(Arguments...), const LaunchShape& shape) {
  AllowShared(kernel, shape.shared_bytes);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  CheckCuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
            "cudaOccupancyMaxActiveClusters");
  return clusters;
}

// Lets the kernel overlap the end of the one in front (sm_90; elsewhere it is a plain launch): it
// must call WaitForPreviousGrid (ptx.h) before it touches what other kernels write. Throws
// nibble::Error if the launch is refused.
template <typename... Arguments>
void LaunchDependent(void (*kernel)(Arguments...), const LaunchShape& shape, cudaStream_t stream,
                     const Arguments&... arguments) {
  static const bool dependent = Device::Current().major >= 9;
  AllowShared(kernel, shape.shared_bytes);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !dependent ? 0 : shape.cluster > 1 ? 2 : 1;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, arguments...), "kernel launch");
}

}  // namespace nibble::cuda
