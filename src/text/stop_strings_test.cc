// SPDX-License-Identifier: Apache-2.0
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace nibble {
namespace {

TEST(StopStrings, HoldBackWhatCouldBecomeOne) {
  StopStrings stops({"END", "\n\n", ""});
  EXPECT_EQ(stops.Push("one\n"), "one");
  EXPECT_EQ(stops.Push("two E"), "\ntwo ");
  EXPECT_EQ(stops.Push("N"), "");
  EXPECT_EQ(stops.Push("T"), "ENT");
  EXPECT_FALSE(stops.found());
  EXPECT_EQ(stops.Push("xENDy\n\n"), "x");
  EXPECT_TRUE(stops.found());
  EXPECT_EQ(stops.Push("more"), "");
  EXPECT_EQ(stops.Flush(), "");
  StopStrings none;
  EXPECT_EQ(none.Push("END"), "END");
}

// However a text is cut, what is shown ends at the first stop string in it.
TEST(StopStrings, CutsDoNotMatter) {
  Rng rng(1);
  for (int run = 0; run < 2000; ++run) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += rng.Below(2) == 0 ? 'a' : 'b';
    const std::vector<std::string> all = {"aab", "bbba", "abab"};
    size_t end = text.size();
    for (const std::string& stop : all) end = std::min(end, text.find(stop));
    StopStrings stops(all);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t count = 1 + rng.Below(4);
      shown += stops.Push(std::string_view(text).substr(at, count));
      at += count;
    }
    shown += stops.Flush();
    EXPECT_EQ(shown, text.substr(0, end)) << text;
    EXPECT_EQ(stops.found(), end < text.size()) << text;
  }
}

}  // namespace
}  // namespace nibble
