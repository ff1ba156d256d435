// SPDX-License-Identifier: Apache-2.0
// Gives a fuzz target every input of its corpus and of what long runs have found. A target ends the
// process when a promise is broken.
#include <errno.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

TEST(FuzzTarget, TakesEveryInputOfItsCorpus) {
  std::string target = program_invocation_short_name;  // nibble_fuzz_TARGET_tests
  target = target.substr(12, target.size() - 12 - 6);
  int inputs = 0;
  for (const fs::path corpora :
       {NIBBLE_SOURCE_DIR "/tests/fuzz/corpus", NIBBLE_BINARY_DIR "/tests/grown"}) {
    if (!fs::exists(corpora / target)) continue;
    for (const auto& entry : fs::directory_iterator(corpora / target)) {
      SCOPED_TRACE(entry.path());
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string input(std::istreambuf_iterator<char>(file), {});
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
      ++inputs;
    }
  }
  EXPECT_GT(inputs, 0);
}

}  // namespace
