// SPDX-License-Identifier: Apache-2.0
#include "chat/system_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_testing.h"
#include "chat/messages.h"

namespace nibble {
namespace {

// "s:A" is a system message A, "u", "a" and "t" are those of user, assistant and tools.
Json List(const std::vector<std::string>& texts) {
  Json messages = Json::array();
  for (const std::string& text : texts) {
    const char* role = text[0] == 's'   ? "system"
                       : text[0] == 'u' ? "user"
                       : text[0] == 'a' ? "assistant"
                                        : "tool";
    messages.push_back({{"role", role}, {"content", text.substr(2)}});
  }
  return messages;
}

TEST(SystemMessages, FoldWhereTheyStand) {
  struct Case {
    std::vector<std::string> given, front, none;
  };
  for (const Case& c : {
           Case{{"s:A", "u:x", "a:y"}, {"s:A", "u:x", "a:y"}, {"u:A\n\nx", "a:y"}},
           Case{{"s:A", "s:B", "u:x"}, {"s:A\n\nB", "u:x"}, {"u:A\n\nB\n\nx"}},
           Case{{"u:x", "a:y", "s:B", "u:z"},
                {"u:x", "a:y", "u:B\n\nz"},
                {"u:x", "a:y", "u:B\n\nz"}},
           Case{{"s:A", "u:x", "s:B", "a:y"}, {"s:A", "u:x\n\nB", "a:y"}, {"u:A\n\nx\n\nB", "a:y"}},
           Case{{"u:x", "a:y", "t:1", "s:B"},
                {"u:x", "a:y", "t:1", "u:B"},
                {"u:x", "a:y", "t:1", "u:B"}},
           Case{{"u:x", "u:y"}, {"u:x", "u:y"}, {"u:x", "u:y"}},
           Case{{"s:A"}, {"s:A"}, {"u:A"}},
       }) {
    EXPECT_EQ(FoldSystemMessages(List(c.given), true).dump(), List(c.front).dump());
    EXPECT_EQ(FoldSystemMessages(List(c.given), false).dump(), List(c.none).dump());
  }
}

std::string Rendered(const std::string& source, const std::vector<std::string>& texts) {
  return RenderMessages(ChatTemplate::Parse(source, "test"), List(texts), false, Json::object());
}

TEST(SystemMessages, AreFoldedWhereATemplateRefusesThem) {
  const std::string any = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
  const std::string first =
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
      "{{ raise_exception('only first') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
  const std::string none =
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}"
      "<{{ m.role }}>{{ m.content }}{% endfor %}";
  const std::vector<std::string> late = {"s:A", "s:B", "u:x", "a:y", "s:C"};
  EXPECT_EQ(Rendered(any, late), "<system>A<system>B<user>x<assistant>y<system>C");
  EXPECT_EQ(Rendered(first, late), "<system>A\n\nB<user>x<assistant>y<user>C");
  EXPECT_EQ(Rendered(none, late), "<user>A\n\nB\n\nx<assistant>y<user>C");
  EXPECT_THAT(ErrorOf([&] { Rendered("{{ raise_exception('never') }}", late); }),
              testing::HasSubstr("never"));
  EXPECT_THAT(ErrorOf([&] { Rendered("{{ raise_exception('never') }}", {"u:x"}); }),
              testing::HasSubstr("never"));
}

TEST(SystemMessages, MayStandInAnthropicsMessages) {
  const Json messages = MessagesFromAnthropic(ParseJson(
      R"({"messages": [{"role": "user", "content": "x"},
                       {"role": "system", "content": [{"type": "text", "text": "A"}]},
                       {"role": "system", "content": "B"}]})",
      "test"));
  EXPECT_EQ(messages.dump(), List({"u:x", "s:A", "s:B"}).dump());
}

}  // namespace
}  // namespace nibble
