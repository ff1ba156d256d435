// SPDX-License-Identifier: Apache-2.0
// A GPU's memory, owned.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <span>
#include <string>

#include "base/aligned.h"

namespace nibble::cuda {

// Makes the GPU that "cuda" or "cuda:N" names the calling thread's. One clear error if the name is
// wrong, if there is no such GPU or driver, or if it is older than compute capability 8.0.
void SelectDevice(const std::string& name);

// Allocates memory of the calling thread's GPU, all zero. Throws naming the bytes that are missing.
AlignedBytes AllocateDevice(size_t bytes);
// The number of times that the program has freed such memory.
uint64_t DeviceFrees();
uint64_t FreeDeviceBytes();
// Host memory, page-locked, so that copies need no intermediate buffer.
AlignedBytes AllocatePinned(size_t bytes);

// Waits until the bytes are there.
void CopyToDevice(const void* source, size_t bytes, void* target);

template <typename T>
Buffer<T> ToDevice(std::span<const T> values) {
  Buffer<T> buffer(AllocateDevice);
  if (values.empty()) return buffer;
  CopyToDevice(values.data(), values.size_bytes(),
               buffer.Grow(static_cast<int64_t>(values.size())));
  return buffer;
}

// Grow-only device memory.
template <typename T>
struct DeviceBuffer : Buffer<T> {
  DeviceBuffer() : Buffer<T>(AllocateDevice) {}
};

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<CUstream_st, DestroyStream>;
Stream MakeStream();

}  // namespace nibble::cuda
