// SPDX-License-Identifier: Apache-2.0
// Which texts are calls. Markers are texts here: tokens of their own are the server's tests'.
#include "chat/required_call.h"

#include <gtest/gtest.h>

#include "grammar/automaton.h"

namespace nibble {
namespace {

const Json& LampTools() {
  static const Json tools = ParseJson(R"([{"type": "function", "function": {"name": "lamp",
      "parameters": {"type": "object", "properties": {"level": {"type": "integer"}},
      "required": ["level"], "additionalProperties": false}}}])",
                                      "tools");
  return tools;
}

bool IsCall(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  grammar::Automaton automaton(grammar);
  grammar::Automaton::TextState state = automaton.start();
  automaton.Begin(&state);
  for (const char byte : text) {
    state = automaton.Step(state, static_cast<uint8_t>(byte));
    if (state == grammar::Automaton::kDead) return false;
    automaton.Begin(&state);
  }
  return automaton.MayEnd(state);
}

FreedTool NoneFreed() {
  return [](const std::string& name, const std::string& why) { FAIL() << name << ": " << why; };
}

struct CallCase {
  CallFormat format;
  std::string begin, rest;
};

TEST(RequiredCallTest, ACallIsItsBeginningAndItsRest) {
  const auto no_tokens = [](const std::string& marker) -> int32_t {
    ADD_FAILURE() << marker;
    return 0;
  };
  for (const CallCase& c :
       {CallCase{CallFormat::kHermes, "<tool_call>",
                 "\n{\"name\": \"lamp\", \"arguments\": {\"level\": 3}}\n</tool_call>"},
        CallCase{CallFormat::kMistral, "[TOOL_CALLS]",
                 "[{\"name\": \"lamp\", \"arguments\": {\"level\": 3}}]"},
        CallCase{CallFormat::kLlamaJson, "",
                 "{\"name\": \"lamp\", \"parameters\": {\"level\": 3}}"},
        CallCase{CallFormat::kGranite, "<|tool_call|>",
                 "[{\"name\": \"lamp\", \"arguments\": {\"level\": 3}}]"}}) {
    SCOPED_TRACE(c.rest);
    const AnswerFormat format = {.calls = c.format};
    EXPECT_EQ(CallMarker(c.format), c.begin);
    const auto whole = RequiredCall(format, LampTools(), no_tokens),
               begun = BegunCall(format, LampTools(), no_tokens, NoneFreed());
    EXPECT_TRUE(IsCall(whole, c.begin + c.rest));
    EXPECT_TRUE(IsCall(begun, c.rest));
    EXPECT_FALSE(IsCall(begun, c.rest.substr(0, c.rest.size() - 1)));
    if (!c.begin.empty()) {
      EXPECT_FALSE(IsCall(whole, c.rest));
      EXPECT_FALSE(IsCall(begun, c.begin + c.rest));
    }
    std::string wrong = c.rest;
    wrong.replace(wrong.find("3"), 1, "\"3\"");
    EXPECT_FALSE(IsCall(begun, wrong));
    wrong = c.rest;
    wrong.replace(wrong.find("lamp"), 4, "door");
    EXPECT_FALSE(IsCall(begun, wrong));
  }
}

// A list is written once, so that a model may say more calls in it.
TEST(RequiredCallTest, ListsThatAreBegunMayGoOn) {
  const std::string call = R"({"name": "lamp", "arguments": {"level": 3}})";
  const std::string two = "[" + call + ", " + call + "]";
  for (const CallFormat calls : {CallFormat::kMistral, CallFormat::kGranite}) {
    const AnswerFormat format = {.calls = calls};
    EXPECT_TRUE(IsCall(BegunCall(format, LampTools(), {}, NoneFreed()), two));
    EXPECT_FALSE(IsCall(BegunCall(format, LampTools(), {}, NoneFreed()), "[" + call + ", 1]"));
    EXPECT_FALSE(IsCall(BegunCall(format, LampTools(), {}, NoneFreed()), "[]"));
    EXPECT_FALSE(
        IsCall(RequiredCall(format, LampTools(), {}), std::string(CallMarker(calls)) + two));
  }
}

TEST(RequiredCallTest, AToolThatIsNotUnderstoodFreesItselfAlone) {
  Json tools = LampTools(), door = tools[0];
  door["function"]["name"] = "door";
  door["function"]["parameters"] = {{"type", "object"}, {"minProperties", 2}};
  tools.push_back(door);
  std::vector<std::string> freed;
  const auto grammar = BegunCall({.calls = CallFormat::kLlamaJson}, tools, {},
                                 [&](const std::string& name, const std::string& why) {
                                   freed.push_back(name);
                                   EXPECT_NE(why, "");
                                 });
  EXPECT_EQ(freed, std::vector<std::string>{"door"});
  EXPECT_TRUE(IsCall(grammar, R"({"name": "lamp", "parameters": {"level": 3}})"));
  EXPECT_FALSE(IsCall(grammar, R"({"name": "lamp", "parameters": {"level": "3"}})"));
  EXPECT_TRUE(IsCall(grammar, R"({"name": "door", "parameters": {"any": [1]}})"));
  EXPECT_FALSE(IsCall(grammar, R"({"name": "door", "parameters": 1})"));
  EXPECT_THROW(RequiredCall({.calls = CallFormat::kLlamaJson}, tools, {}), Error);
}

TEST(RequiredCallTest, FormatsWithoutAGrammarHaveNone) {
  for (const CallFormat format : {CallFormat::kNone, CallFormat::kXml, CallFormat::kGlm,
                                  CallFormat::kGemma, CallFormat::kLlamaPython}) {
    EXPECT_EQ(RequiredCall({.calls = format}, LampTools(), {}), nullptr);
    EXPECT_EQ(CallMarker(format), "");
  }
}

}  // namespace
}  // namespace nibble
