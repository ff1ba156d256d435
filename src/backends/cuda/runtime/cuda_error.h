// SPDX-License-Identifier: Apache-2.0
// Replaces base/error.h in files that nvcc compiles: nvcc does not compile fmt.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "nibble/error.h"

namespace nibble {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);  // base/error.h

namespace cuda {

// Throws nibble::Error with what CUDA says.
inline void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error(ErrorCode::kFailed, std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace cuda
}  // namespace nibble

// A bug in this program: aborts.
#define NIBBLE_CUDA_CHECK(condition)                                            \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::nibble::CheckFailed(__FILE__, __LINE__, #condition, "wrong arguments"); \
  } while (false)
