// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <cstdlib>

namespace nibble {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  fmt::print(stderr, "{}:{}: check failed: {}: {}\n", file, line, condition, message);
  std::abort();
}

}  // namespace nibble
