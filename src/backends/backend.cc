// SPDX-License-Identifier: Apache-2.0
#include "backends/backend.h"

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "base/cpu_features.h"

namespace nibble {

std::unique_ptr<Backend> MakeBackend(const std::string& device, bool decoded) {
  if (device != "cpu") FailUsage("--device {}: this build has only \"cpu\"", device);
  if (decoded) return MakeRefBackend(RefMode::kDecoded);
  if (ActiveIsa() == Isa::kRef) return MakeRefBackend(RefMode::kInteger);
  return MakeCpuBackend(ActiveIsa());
}

}  // namespace nibble
