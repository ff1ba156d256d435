// SPDX-License-Identifier: Apache-2.0
#include "chat/render_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_testing.h"
#include "chat/messages.h"

namespace nibble {
namespace {

// "s:A" is the system message A; "u:", "a:" and "t:" begin messages of user, assistant and tools.
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
           Case{{"u:x", "s:B", "u:y", "u:z"}, {"u:x\n\nB\n\ny\n\nz"}, {"u:x\n\nB\n\ny\n\nz"}},
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

// Like the template of DeepSeek's R1 distills, it writes calls only where the content is none, and
// joins their arguments to a text.
constexpr const char* kJoins =
    "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
    "{{ '<CALL>' + c.function.name + ' ' + c.function.arguments }}{% endfor %}"
    "{% else %}{{ '<' + m.role + '>' + m.content }}{% endif %}{% endfor %}";
// Like Qwen 3 Coder's template, it writes calls beside any content, argument by argument.
constexpr const char* kWalks =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}<CALL>"
    "{{ c.function.name }}{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %}"
    "{% endfor %}{% endfor %}";

Json History(const char* arguments) {
  const Json call = {{"id", "c"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
  return TemplateMessages({{{"role", "user"}, {"content", "hi"}},
                           {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}},
                           {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "ok"}}});
}

TEST(CallsInHistories, AreWrittenAsTheTemplateTakesThem) {
  const auto render = [](const char* source, const char* arguments) {
    return RenderMessages(ChatTemplate::Parse(source, "test"), History(arguments), false,
                          Json::object());
  };
  EXPECT_EQ(render(kJoins, R"({"a":1,"b":[2]})"), R"(<user>hi<CALL>f {"a": 1, "b": [2]}<tool>ok)");
  EXPECT_EQ(render(kJoins, R"({"a": )"), R"(<user>hi<CALL>f {"a": <tool>ok)") << "cut";
  EXPECT_EQ(render(kWalks, R"({"a": 1})"), "<user>hi<assistant><CALL>f a=1<tool>ok");
  EXPECT_EQ(render(kWalks, "null"), "<user>hi<assistant><CALL>f<tool>ok");
  EXPECT_EQ(render(kWalks, R"({"a": )"), R"(<user>hi<assistant><CALL>f arguments={"a": <tool>ok)");
  EXPECT_EQ(render("{% for m in messages %}<{{ m.role }}>{% endfor %}", "{}"),
            "<user><assistant><tool>")
      << "a template without calls";
}

// The templates of Granite 3 and Phi-4-mini write none.
TEST(CallsInHistories, AreTextWhereATemplateWritesNone) {
  const auto render = [](const std::string& source, const Json& extra) {
    return RenderMessages(ChatTemplate::Parse(source, "test"), History(R"({"a": 1})"), false,
                          extra);
  };
  const std::string granite =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if tools %} respond with <|tool_call|> followed by a list{% endif %}";
  EXPECT_EQ(render(granite, Json::object()),
            R"(<user>hi<assistant><|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<tool>ok)");
  const std::string phi =
      "{% for m in messages %}{% if m.role == 'system' and 'tools' in m and m.tools is not none %}"
      "{{ '<|system|>' + m.content + '<|tool|>' + m.tools + '<|/tool|>' }}{% else %}"
      "<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}";
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}, {"description", "d"}}}}};
  EXPECT_EQ(render(phi, {{"tools", tools}}),
            R"(<|system|><|tool|>[{"name": "f", "description": "d"}]<|/tool|><|user|>hi)"
            R"(<|assistant|><|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>)"
            "<|tool|>ok");
  EXPECT_EQ(RenderMessages(ChatTemplate::Parse(phi, "test"), List({"s:A", "u:x"}), false,
                           {{"tools", tools}}),
            R"(<|system|>A<|tool|>[{"name": "f", "description": "d"}]<|/tool|><|user|>x)");
  EXPECT_EQ(RenderMessages(ChatTemplate::Parse(phi, "test"), List({"s:A"}), false, Json::object()),
            "<|system|>A");
}

// A template that writes both the variable `tools` and the tools of a system message (Kimi K3's)
// gets them in one place.
TEST(CallsInHistories, ToolsAreOfferedInOnePlace) {
  const std::string both =
      "{% if tools %}[{% for t in tools %}{{ t.function.name }}{% endfor %}]{% endif %}"
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tools }}{% endfor %}";
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}, {"description", "d"}}}}};
  EXPECT_EQ(
      RenderMessages(ChatTemplate::Parse(both, "test"), List({"u:x"}), false, {{"tools", tools}}),
      "[f]<user>x");
}

// Mistral's template takes ids of nine letters and digits, or fails.
TEST(CallsInHistories, IdsAreShortWhereATemplateRefusesOthers) {
  const std::string strict =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}"
      "{{ raise_exception('nine, please') }}{% endif %}<{{ c.id }}>{{ c.function.name }}"
      "{{ c.function.arguments|tojson }}{% endfor %}"
      "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}";
  Json messages = Json::array();
  for (const char* id : {"call_b7f1a2", "abcDEF123", "functions.f:0", "call_b7f1a2"}) {
    const Json call = {{"id", id}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
    messages.push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}});
    messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", "ok"}});
  }
  messages = TemplateMessages(messages);
  const auto render = [&](const std::string& source) {
    return RenderMessages(ChatTemplate::Parse(source, "test"), messages, false, Json::object());
  };
  EXPECT_EQ(render(strict),
            "<000000000>f{}(000000000)<abcDEF123>f{}(abcDEF123)<000000001>f{}(000000001)"
            "<000000000>f{}(000000000)");
  EXPECT_THAT(render("{{ messages|tojson }}"), testing::HasSubstr("functions.f:0"));
}

// The templates of gpt-oss and LFM2.5 call reasoning "thinking"; the first refuses it beside a text
// and calls.
TEST(Reasoning, HasTheTemplatesName) {
  const std::string takes =
      "{% for m in messages %}<{{ m.role }}>{% if m.thinking %}{% if m.content and m.tool_calls %}"
      "REFUSE{% endif %}[{{ m.thinking }}]{% endif %}{{ m.content }}{% for c in m.tool_calls or [] "
      "%}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}";
  const auto with = [&](std::string text) {
    std::string source = takes;
    source.replace(source.find("REFUSE"), 6, text);
    return source;
  };
  Json messages = TemplateMessages(
      {{{"role", "user"}, {"content", "x"}},
       {{"role", "assistant"}, {"content", "y"}, {"reasoning", "hm"}},
       {{"role", "assistant"},
        {"content", "z"},
        {"reasoning_content", "so"},
        {"tool_calls", {{{"id", "c"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}}}}});
  const auto render = [&](const std::string& source) {
    return RenderMessages(ChatTemplate::Parse(source, "test"), messages, false, Json::object());
  };
  EXPECT_EQ(render(with("")), "<user>x<assistant>[hm]y<assistant>[so]zf{}");
  EXPECT_EQ(render(with("{{ raise_exception('both') }}")),
            "<user>x<assistant>[hm]y<assistant>zf{}");
  EXPECT_EQ(render("{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}"),
            "hmso");
}

TEST(CallsInHistories, ErrorsAreThoseOfTheMessagesAsTheyAre) {
  const auto error = [](const char* source, const char* arguments) {
    return ErrorOf([&] {
      RenderMessages(ChatTemplate::Parse(source, "test"), History(arguments), false,
                     Json::object());
    });
  };
  EXPECT_THAT(error("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ raise_exception("
                    "'no calls, ' + c.function.arguments|string) }}{% endfor %}{% endfor %}",
                    "null"),
              testing::HasSubstr("no calls, null"));
  EXPECT_EQ(error(kJoins, R"({"a": 18446744073709551615})"), "") << "integers have no bounds";
}

TEST(CallsInHistories, FormsAreFoundByTrying) {
  const auto form = [](const std::string& source) {
    return FindCallForm(ChatTemplate::Parse(source, "test"), Json::object());
  };
  EXPECT_EQ(form(kWalks), CallForm());
  EXPECT_EQ(form(kJoins), (CallForm{true, true}));
  EXPECT_EQ(form("{% for m in messages %}{% if m.content is none %}{{ m.tool_calls | tojson }}"
                 "{% endif %}{% endfor %}"),
            (CallForm{true, false}));
  EXPECT_EQ(form("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name + "
                 "c.function.arguments }}{% endfor %}{% endfor %}"),
            (CallForm{false, true}));
}

TEST(ContinuedMessages, EndWhereTheLastTextDoes) {
  const auto render = [](const std::string& source, const std::vector<std::string>& texts) {
    return RenderContinued(ChatTemplate::Parse(source, "test"), List(texts), Json::object());
  };
  const std::string plain =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}";
  EXPECT_EQ(render(plain, {"u:hi", "a:one "}), "<user>hi</user><assistant>one ");
  EXPECT_EQ(render(plain, {"u:hi", "a:a"}), "<user>hi</user><assistant>a")
      << "also in what follows";
  EXPECT_EQ(render(plain, {"u:hi", "a:"}), std::nullopt);
  EXPECT_EQ(render(plain, {"u:hi", "a:x\u00a0"}), "<user>hi</user><assistant>x\u00a0");
  std::string trims = plain;
  trims.replace(trims.find("m.content"), 9, "m.content | trim");
  EXPECT_EQ(render(trims, {"u:yes ", "a:yes "}), "<user>yes</user><assistant>yes")
      << "and before it";
  EXPECT_EQ(render(trims, {"u:hi", "a:\n\nx\u00a0\n"}), "<user>hi</user><assistant>x");
  EXPECT_EQ(render("{{ messages[0].content }}", {"u:hi", "a:yes"}), std::nullopt);
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
