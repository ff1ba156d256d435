// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace nibble {

std::string SystemErrorText(int error) {
  constexpr const char* kRemedy = "free space, then repeat the command, quantize with --resume";
  if (error == ENOSPC) return fmt::format("disk full; {}", kRemedy);
  if (error == EDQUOT) return fmt::format("disk quota reached; {}", kRemedy);
  if (error == EFBIG) return "above the limit on the size of files, see ulimit -f";
  return std::strerror(error);
}

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  Note("{}:{}: check failed: {}: {}\n", file, line, condition, message);
  std::abort();
}

}  // namespace nibble
