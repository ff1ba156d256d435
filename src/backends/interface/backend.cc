// SPDX-License-Identifier: Apache-2.0
#include "backends/interface/backend.h"

#include "backends/interface/math_services.h"

namespace nibble {

MathServices& Backend::services() {
  static MathServices none;
  return none;
}

}  // namespace nibble
