// SPDX-License-Identifier: Apache-2.0
#include "compute/backend.h"

#include "compute/math_services.h"

namespace nibble {

MathServices& Backend::services() {
  static MathServices none;
  return none;
}

}  // namespace nibble
