// SPDX-License-Identifier: Apache-2.0
// Damaged files of formats that other programs write, given to the program: each ends in exactly
// one line that says what is wrong, with exit code 1, soon and in little memory: 50 ms (of which a
// test keeps a tenfold, see below) and 100 MB, and more only as the file is large.
#pragma once

#include <set>

#include "tests/e2e_testing.h"

namespace nibble {

class MalformedFormat : public TemporaryDirectoryTest {
 protected:
  static constexpr size_t kMinCases = 40;  // each test has at least as many
#ifdef NIBBLE_SLOW_BUILD
  static constexpr double kMaxBytes = 2e9;  // sanitizers take memory of their own
  static constexpr size_t kEvery = 3;       // and time: one of so many cases is run
#else
  static constexpr double kMaxBytes = 100e6;
  static constexpr size_t kEvery = 1;
#endif
  // The limit is ten times the promised time: a machine may be slow or busy, but work that grows
  // with a number in a file exceeds any limit. The test's properties have the time that was taken.
  static constexpr double kMaxSeconds = 0.5;

  void TearDown() override {
    EXPECT_GE(inputs_.size(), kMinCases);
    RecordProperty("cases", static_cast<int>(inputs_.size()));
    RecordProperty("most_ms", static_cast<int>(1000 * max_seconds_));
    TemporaryDirectoryTest::TearDown();
  }

  // The undamaged file, without which no refusal would mean anything.
  void ExpectAccepted(const Arguments& arguments) const {
    const Result r = Nibble(arguments);
    ASSERT_EQ(r.code, 0) << r.err;
  }

  // `bytes` are those of the file that the arguments name. The line names the file and says `what`.
  void ExpectRefused(const std::string& name, const std::string& bytes, const Arguments& arguments,
                     const std::string& what) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(inputs_.insert(std::hash<std::string>()(bytes)).second) << "as another case";
    if (inputs_.size() % kEvery != 0) return;
    const Result r = Nibble(arguments);
    EXPECT_EQ(r.code, 1) << r.out;
    EXPECT_THAT(r.err, testing::AllOf(testing::StartsWith("nibble: " + root_.string()),
                                      testing::HasSubstr(what), testing::EndsWith("\n")));
    EXPECT_EQ(std::ranges::count(r.err, '\n'), 1) << r.err;
    for (const char c : r.err) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n') << r.err;
    }
    EXPECT_LT(r.seconds, kMaxSeconds);
    EXPECT_LT(r.peak_bytes, kMaxBytes + static_cast<double>(bytes.size()));
    max_seconds_ = std::max(max_seconds_, r.seconds);
  }

 private:
  std::set<size_t> inputs_;  // hashes
  double max_seconds_ = 0;   // of processor time
};

}  // namespace nibble
