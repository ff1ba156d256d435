// SPDX-License-Identifier: Apache-2.0
// Large test data that the project does not carry: NIBBLE_SHARED, or the folder shared/ beside the
// source tree. Tests that need it skip when it is absent.
#pragma once

#include <cstdlib>
#include <string>

namespace nibble::test {

inline std::string SharedPath(const std::string& relative) {
  const char* root = std::getenv("NIBBLE_SHARED");
  return std::string(root != nullptr ? root : NIBBLE_SOURCE_DIR "/../shared") + "/" + relative;
}

}  // namespace nibble::test
