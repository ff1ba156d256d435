// SPDX-License-Identifier: Apache-2.0
#include "compute/backend.h"

#include <algorithm>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/gemm/kernel_table.h"
#include "backends/ref/ref_backend.h"
#include "base/cpu_features.h"
#include "compute/devices.h"
#include "compute/exact_backend.h"

#ifdef NIBBLE_HAS_CUDA
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/gemm/kernel_table.h"
#include "backends/cuda/runtime/device_info.h"
#endif

namespace nibble {
namespace {

std::unique_ptr<Backend> MakeGpuBackend(const std::string& device, bool decoded) {
  if (decoded) FailUsage("--decoded runs on the cpu only");
#ifdef NIBBLE_HAS_CUDA
  return MakeCudaBackend(device);
#else
  FailUsage(
      "--device {}: this program was built without CUDA (cmake -DNIBBLE_CUDA=ON) and knows only "
      "\"cpu\"",
      device);
#endif
}

std::unique_ptr<Backend> MakeCpu(Isa isa) {
  return isa == Isa::kRef ? MakeRefBackend(RefMode::kInteger) : MakeCpuBackend(isa);
}

}  // namespace

std::unique_ptr<Backend> MakeBackend(const std::string& device, bool decoded) {
  if (device != "cpu") return MakeGpuBackend(device, decoded);
  if (decoded) return MakeRefBackend(RefMode::kDecoded);
  return MakeCpu(ActiveIsa());
}

bool HasGpu() {
#ifdef NIBBLE_HAS_CUDA
  return cuda::HasDevice();
#else
  return false;
#endif
}

std::unique_ptr<Backend> MakeExactBackend() {
  return MakeCpu(std::min(ActiveIsa(), Isa::kAvx512Vbmi));
}

std::vector<MachineKernels> EveryMachine() {
  std::vector<MachineKernels> machines;
  for (const Isa isa : kVectorIsas) {
    machines.push_back({fmt::format("cpu, {}", IsaName(isa)),
                        [=](const auto& p, int64_t n) { return cpu::KernelFor(isa, p, n); }});
  }
#ifdef NIBBLE_HAS_CUDA
  for (const int capability : {8, 9}) {
    machines.push_back(
        {fmt::format("cuda, compute capability {}", capability),
         [=](const auto& p, int64_t n) { return cuda::KernelFor(capability, p, n); }});
  }
#endif
  return machines;
}

}  // namespace nibble
