// SPDX-License-Identifier: Apache-2.0
#include "chat/literal_matcher.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

// Writes plain text as it is, "<1>" for literal 1 and "|" where Flush is called, which is at each
// '|' of `text`.
std::string Matched(LiteralMatcher matcher, std::string_view text) {
  std::string said;
  for (const char c : text) {
    if (c == '|') {
      said += matcher.Flush() + "|";
      continue;
    }
    const LiteralMatcher::Found found = matcher.Push(c);
    said += found.plain;
    if (found.literal >= 0) said += "<" + std::to_string(found.literal) + ">";
  }
  return said + matcher.Flush();
}

TEST(LiteralMatcher, BeginsAnewBehindALiteralAndBehindAFlush) {
  const LiteralMatcher matcher({"aa", "bcd"});
  EXPECT_EQ(Matched(matcher, "aaa"), "<0>a");
  EXPECT_EQ(Matched(matcher, "xaaaab"), "x<0><0>b");
  EXPECT_EQ(Matched(matcher, "bc|dbcd"), "bc|d<1>");
  EXPECT_EQ(Matched(matcher, "a|aab"), "a|<0>b");
  EXPECT_EQ(Matched(matcher, "bcbcd"), "bc<1>");
}

}  // namespace
}  // namespace nibble
