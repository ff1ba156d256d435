// SPDX-License-Identifier: Apache-2.0
// The meaning of every op in plain loops: what the kernels are checked against and the last resort
// on a processor without AVX2.
#pragma once

#include <memory>

#include "compute/backend.h"

namespace nibble {

enum class RefMode {
  kInteger,  // products of codes summed exactly in int32, then the fp32 epilogue
  kDecoded,  // the same codes decoded to fp32 and multiplied through BLAS: the check that the
             // integers are right (`--decoded`)
};
std::unique_ptr<Backend> MakeRefBackend(RefMode mode);

}  // namespace nibble
