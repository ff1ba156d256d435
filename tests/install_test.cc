// SPDX-License-Identifier: Apache-2.0
// Tests what another project uses after `cmake --install`: find_package(nibble), headers, library.
#include <gtest/gtest.h>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

using Install = TemporaryDirectoryTest;

TEST_F(Install, AnotherProjectFindsLinksAndRunsNibble) {
  const auto run = [](const Arguments& command) { return Process(command, "", {}).Wait(); };
  const std::string prefix = Path("prefix"), build = Path("build");
  ASSERT_EQ(run({NIBBLE_CMAKE, "--install", NIBBLE_BINARY_DIR, "--prefix", prefix}).code, 0);
  const Result configured =
      run({NIBBLE_CMAKE, "-S", NIBBLE_SOURCE_DIR "/tests/consumer", "-B", build, "-G", "Ninja",
           "-DCMAKE_PREFIX_PATH=" + prefix, "-DCMAKE_CXX_FLAGS=" NIBBLE_CXX_FLAGS});
  ASSERT_EQ(configured.code, 0) << configured.err;
  const Result built = run({NIBBLE_CMAKE, "--build", build});
  ASSERT_EQ(built.code, 0) << built.out;
  const Result used = run({build + "/consumer", kTiny, Path("out")});
  EXPECT_EQ(used.code, 0) << used.err;
  EXPECT_TRUE(used.out.starts_with("0.")) << used.out;
  for (const char* file :
       {"bin/nibble", "share/man/man1/nibble.1", "share/bash-completion/completions/nibble",
        "share/zsh/site-functions/_nibble", "share/fish/vendor_completions.d/nibble.fish"}) {
    std::error_code error;
    EXPECT_GT(std::filesystem::file_size(prefix + "/" + file, error), 500u) << file;
  }
}

}  // namespace
}  // namespace nibble
