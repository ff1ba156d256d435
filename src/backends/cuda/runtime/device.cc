// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/runtime/device.h"

#include <atomic>
#include <charconv>

#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/device_info.h"
#include "base/error.h"

namespace nibble::cuda {
namespace {

std::atomic<int64_t> requested = 0;
std::atomic<uint64_t> frees = 0;

constexpr int kMinCapability = 8;

double Gigabytes(size_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

// "cuda" is "cuda:0".
int DeviceNumber(const std::string& name) {
  constexpr size_t kPrefix = 5;
  if (name == "cuda") return 0;
  int number = -1;
  const char *first = name.data() + std::min(kPrefix, name.size()),
             *last = name.data() + name.size();
  const auto [end, error] = std::from_chars(first, last, number);
  if (!name.starts_with("cuda:") || error != std::errc() || end != last || number < 0) {
    FailUsage("--device {}: use cpu or cuda:N", name);
  }
  return number;
}

}  // namespace

void SelectDevice(const std::string& name) {
  const int number = DeviceNumber(name);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    Fail("--device {}: no NVIDIA GPU with a fitting driver: {}", name, cudaGetErrorString(error));
  }
  if (number >= count)
    Fail("--device {}: this machine has {} GPU{}", name, count, count == 1 ? "" : "s");
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, number), "cudaGetDeviceProperties");
  if (properties.major < kMinCapability) {
    Fail("--device {}: the {} has compute capability {}.{}, Nibble needs 8.0", name,
         properties.name, properties.major, properties.minor);
  }
  if (const cudaError_t busy = cudaSetDevice(number); busy != cudaSuccess) {
    Fail("--device {}: the {} cannot be used: {}", name, properties.name, cudaGetErrorString(busy));
  }
}

bool HasDevice() {
  cudaDeviceProp properties;
  int count = 0;
  const bool there = cudaGetDeviceCount(&count) == cudaSuccess && count > 0 &&
                     cudaGetDeviceProperties(&properties, 0) == cudaSuccess &&
                     properties.major >= kMinCapability;
  cudaGetLastError();  // having none is no failure
  return there;
}

int64_t RequestedDeviceBytes() {
  return requested;
}

uint64_t FreeDeviceBytes() {
  size_t free = 0, total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

uint64_t DeviceFrees() {
  return frees;
}

AlignedBytes AllocateDevice(size_t bytes) {
  requested += static_cast<int64_t>(bytes);
  void* memory = nullptr;
  if (cudaMalloc(&memory, std::max<size_t>(bytes, 1)) != cudaSuccess) {
    cudaGetLastError();  // the failure is dealt with here
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    Fail(
        "{:.2f} GB more do not fit on the GPU: {:.2f} of {:.2f} GB are free; use --device cpu, "
        "fewer --calib-windows or a smaller --context",
        Gigabytes(bytes), Gigabytes(free), Gigabytes(total));
  }
  AlignedBytes owner(static_cast<std::byte*>(memory), FreeBytes{[](void* p) {
                       ++frees;
                       cudaFree(p);
                     }});
  CheckCuda(cudaMemset(memory, 0, bytes), "cudaMemset");
  return owner;
}

AlignedBytes AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  CheckCuda(cudaMallocHost(&memory, std::max<size_t>(bytes, 1)), "cudaMallocHost");
  return AlignedBytes(static_cast<std::byte*>(memory), FreeBytes{[](void* p) { cudaFreeHost(p); }});
}

void CopyToDevice(const void* source, size_t bytes, void* target) {
  CheckCuda(cudaMemcpy(target, source, bytes, cudaMemcpyHostToDevice), "copy to the GPU");
}

Stream MakeStream() {
  cudaStream_t stream = nullptr;
  // Blocking: ordered with the copies and clearings above, which use the default stream.
  CheckCuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  return Stream(stream);
}

}  // namespace nibble::cuda
