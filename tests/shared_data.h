// SPDX-License-Identifier: Apache-2.0
// Test data by its path below tests/, or, for what the project does not carry, below NIBBLE_SHARED
// (the folder shared/ beside the source tree, if it is not set).
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace nibble::test {

inline std::string DataPath(const std::string& relative) {
  const std::string own = NIBBLE_SOURCE_DIR "/tests/" + relative;
  if (std::filesystem::exists(own)) return own;
  const char* shared = std::getenv("NIBBLE_SHARED");
  return std::string(shared != nullptr ? shared : NIBBLE_SOURCE_DIR "/../shared") + "/" + relative;
}

}  // namespace nibble::test

// The reason is one that tools/count_tests.py knows.
#define NIBBLE_SKIP_WITHOUT_DATA(relative)                        \
  if (!std::filesystem::exists(nibble::test::DataPath(relative))) \
  GTEST_SKIP() << "needs shared/" << (relative)
