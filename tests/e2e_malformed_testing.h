// SPDX-License-Identifier: Apache-2.0
// Damaged files of formats that other programs write, given to the program: each ends in exactly
// one line that says what is wrong, with exit code 1, soon and in little memory: 50 ms and 100 MB,
// and more only as the file is large.
#pragma once

#include <set>

#include "tests/e2e_testing.h"

namespace nibble {

class MalformedFormat : public TemporaryDirectoryTest {
 protected:
  static constexpr size_t kMinCases = 40;  // of each test, as promised of each format
#ifdef NIBBLE_SLOW_BUILD                   // sanitizers take time and memory of their own
  static constexpr double kMaxSeconds = 60, kMaxBytes = 2e9, kSecondsPerByte = 0;
#else
  static constexpr double kMaxSeconds = 0.05, kMaxBytes = 100e6, kSecondsPerByte = 20e-9;
#endif

  void TearDown() override {
    EXPECT_GE(inputs_.size(), kMinCases);
    RecordProperty("cases", static_cast<int>(inputs_.size()));
    TemporaryDirectoryTest::TearDown();
  }

  // The undamaged file, without which no refusal would mean anything.
  void ExpectAccepted(const Arguments& arguments) const {
    const Result r = Nibble(arguments);
    ASSERT_EQ(r.code, 0) << r.err;
  }

  // `bytes`: the file that the arguments name. The line names it, and says `what`.
  void ExpectRefused(const std::string& name, const std::string& bytes, const Arguments& arguments,
                     const std::string& what) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(inputs_.insert(std::hash<std::string>()(bytes)).second) << "as another case";
    const auto size = static_cast<double>(bytes.size());
    const double max_seconds = kMaxSeconds + kSecondsPerByte * size;
    Result r = Nibble(arguments);
    // Whatever else runs on the machine only adds to the time, and not three times in a row.
    for (int i = 0; i < 2 && r.seconds >= max_seconds; ++i) r = Nibble(arguments);
    EXPECT_EQ(r.code, 1) << r.out;
    EXPECT_THAT(r.err, testing::AllOf(testing::StartsWith("nibble: " + root_.string()),
                                      testing::HasSubstr(what), testing::EndsWith("\n")));
    EXPECT_EQ(std::ranges::count(r.err, '\n'), 1) << r.err;
    for (const char c : r.err) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n') << r.err;
    }
    EXPECT_LT(r.seconds, max_seconds);
    EXPECT_LT(r.peak_bytes, kMaxBytes + size);
  }

 private:
  std::set<size_t> inputs_;  // hashes
};

}  // namespace nibble
