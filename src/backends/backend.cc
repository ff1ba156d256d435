// SPDX-License-Identifier: Apache-2.0
#include "backends/interface/backend.h"

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "base/cpu_features.h"

#ifdef NIBBLE_HAS_CUDA
#include "backends/cuda/cuda_backend.h"
#endif

namespace nibble {
namespace {

std::unique_ptr<Backend> MakeGpuBackend(const std::string& device, bool decoded) {
  if (decoded) FailUsage("--decoded runs on the cpu only");
#ifdef NIBBLE_HAS_CUDA
  return MakeCudaBackend(device);
#else
  FailUsage("--device {}: this program was built without CUDA and knows only \"cpu\"", device);
#endif
}

}  // namespace

std::unique_ptr<Backend> MakeBackend(const std::string& device, bool decoded) {
  if (device != "cpu") return MakeGpuBackend(device, decoded);
  if (decoded) return MakeRefBackend(RefMode::kDecoded);
  if (ActiveIsa() == Isa::kRef) return MakeRefBackend(RefMode::kInteger);
  return MakeCpuBackend(ActiveIsa());
}

}  // namespace nibble
