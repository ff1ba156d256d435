// SPDX-License-Identifier: Apache-2.0
// The GPU, for tests that need one: if (!gpu) GTEST_SKIP() << "needs a GPU".
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "compute/backend.h"

namespace nibble {

// Null where the program knows no GPU or the machine has none.
inline std::unique_ptr<Backend> GpuOrNull() {
  try {
    return MakeBackend("cuda", false);
  } catch (const Error& error) {
    const std::string what = error.what();
    if (what.find("no NVIDIA GPU") == what.npos && what.find("without CUDA") == what.npos) throw;
  }
  return nullptr;
}

}  // namespace nibble
