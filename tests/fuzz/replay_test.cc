// SPDX-License-Identifier: Apache-2.0
// Gives a fuzz target every input of its corpus and those that long runs have found, within the
// limits of tools/fuzz. A target ends the process when a promise is broken.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

TEST(FuzzTarget, TakesEveryInputOfItsCorpus) {
  int inputs = 0;
  for (const fs::path corpora :
       {NIBBLE_SOURCE_DIR "/tests/fuzz/corpus", NIBBLE_BINARY_DIR "/tests/grown"}) {
    const fs::path corpus = corpora / NIBBLE_FUZZ_TARGET;
    if (!fs::exists(corpus)) continue;
    for (const auto& entry : fs::directory_iterator(corpus)) {
      SCOPED_TRACE(entry.path());
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string input(std::istreambuf_iterator<char>(file), {});
      const auto start = std::chrono::steady_clock::now();
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
      ++inputs;
    }
  }
  EXPECT_GT(inputs, 0);
}

}  // namespace
