// SPDX-License-Identifier: Apache-2.0
// Tests which texts are calls. Markers are texts here; the server's tests have markers that are
// tokens.
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
  return grammar::Automaton(grammar).Accepts(text);
}

ToolNote NoNotes() {
  return [](const std::string& name, const std::string& what) { FAIL() << name << ": " << what; };
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
    const auto whole = RequiredCall(format, LampTools(), no_tokens, NoNotes()),
               begun = BegunCall(format, LampTools(), no_tokens, NoNotes());
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

// A list that the model begins may have more than one call.
TEST(RequiredCallTest, ListsThatAreBegunMayGoOn) {
  const std::string call = R"({"name": "lamp", "arguments": {"level": 3}})";
  const std::string two = "[" + call + ", " + call + "]";
  for (const CallFormat calls : {CallFormat::kMistral, CallFormat::kGranite}) {
    const AnswerFormat format = {.calls = calls};
    EXPECT_TRUE(IsCall(BegunCall(format, LampTools(), {}, NoNotes()), two));
    EXPECT_FALSE(IsCall(BegunCall(format, LampTools(), {}, NoNotes()), "[" + call + ", 1]"));
    EXPECT_FALSE(IsCall(BegunCall(format, LampTools(), {}, NoNotes()), "[]"));
    EXPECT_FALSE(IsCall(RequiredCall(format, LampTools(), {}, NoNotes()),
                        std::string(CallMarker(calls)) + two));
  }
}

// Keywords of a tool's schema that cannot be enforced are left out with a note; in a strict tool
// they are an error.
TEST(RequiredCallTest, AToolThatIsNotUnderstoodFreesItselfAlone) {
  Json tools = LampTools(), door = tools[0];
  door["function"]["name"] = "door";
  door["function"]["parameters"] = ParseJson(R"({"type": "object", "properties": {
      "names": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}},
      "required": ["names"]})",
                                             "test");
  tools.push_back(door);
  const AnswerFormat format = {.calls = CallFormat::kLlamaJson};
  std::vector<std::string> noted;
  const auto note = [&](const std::string& name, const std::string& what) {
    noted.push_back(name);
    EXPECT_NE(what, "");
  };
  for (const auto& make : {BegunCall, RequiredCall}) {
    const auto grammar = make(format, tools, {}, note);
    EXPECT_EQ(noted, std::vector<std::string>{"door"});
    noted.clear();
    EXPECT_TRUE(IsCall(grammar, R"({"name": "lamp", "parameters": {"level": 3}})"));
    EXPECT_FALSE(IsCall(grammar, R"({"name": "lamp", "parameters": {"level": "3"}})"));
    EXPECT_TRUE(IsCall(grammar, R"({"name": "door", "parameters": {"names": ["a", "a"]}})"));
    EXPECT_FALSE(IsCall(grammar, R"({"name": "door", "parameters": {"names": [1]}})"));
  }
  Json strict = tools;
  strict[1]["function"]["strict"] = true;
  EXPECT_THROW(BegunCall(format, strict, {}, note), Error);
  EXPECT_THROW(RequiredCall(format, strict, {}, note), Error);
  tools[1]["function"]["parameters"] = {{"$ref", "#/nowhere"}};
  const auto grammar = BegunCall(format, tools, {}, note);
  EXPECT_EQ(noted, std::vector<std::string>{"door"});
  EXPECT_TRUE(IsCall(grammar, R"({"name": "door", "parameters": {"any": [1]}})"));
  EXPECT_FALSE(IsCall(grammar, R"({"name": "door", "parameters": 1})"));
  EXPECT_THROW(RequiredCall(format, tools, {}, note), Error);
}

TEST(RequiredCallTest, CallsStayPossibleBesideAFormat) {
  const auto text = [](GrammarBuilder*) { return grammar::Literal("[7]"); };
  const std::string call = R"({"name": "lamp", "arguments": {"level": 3}})";
  const auto grammar_of = [&](CallFormat calls) {
    return CallsOrText({.calls = calls}, LampTools(), {}, NoNotes(), text);
  };
  const std::string hermes = "<tool_call>\n" + call + "\n</tool_call>";
  const std::string mistral = "[TOOL_CALLS][" + call + "]";
  const std::string harmony =
      "<|channel|>commentary to=functions.lamp <|constrain|>json<|message|>{\"level\": 3}";
  const std::string reasoning = "<|channel|>analysis<|message|>So.<|end|><|start|>assistant";
  const std::string final = "<|channel|>final<|message|>[7]";
  struct Case {
    CallFormat format;
    std::vector<std::string> good, bad;
  };
  for (const Case& c : {Case{CallFormat::kHermes,
                             {"[7]", hermes, hermes + "\n" + hermes},
                             {"", "[8]", hermes + "[7]"}},
                        Case{CallFormat::kMistral, {"[7]", mistral}, {"[7][7]", call}},
                        Case{CallFormat::kLlamaJson,
                             {"[7]", R"({"name": "lamp", "parameters": {"level": 3}})"},
                             {R"({"name": "lamp", "parameters": {}})"}},
                        Case{CallFormat::kHarmony,
                             {final, harmony, reasoning + final, reasoning + harmony},
                             {"[7]", reasoning, final + harmony}}}) {
    const auto grammar = grammar_of(c.format);
    for (const std::string& good : c.good) EXPECT_TRUE(IsCall(grammar, good)) << good;
    for (const std::string& bad : c.bad) EXPECT_FALSE(IsCall(grammar, bad)) << bad;
  }
  EXPECT_EQ(grammar_of(CallFormat::kXml), nullptr);
  // A text alone has its channel, too.
  const auto alone =
      CallsOrText({.calls = CallFormat::kHarmony}, Json::array(), {}, NoNotes(), text);
  EXPECT_TRUE(IsCall(alone, final));
  EXPECT_FALSE(IsCall(alone, harmony));
}

TEST(RequiredCallTest, FormatsWithoutAGrammarHaveNone) {
  for (const CallFormat format : {CallFormat::kNone, CallFormat::kXml, CallFormat::kGlm,
                                  CallFormat::kGemma, CallFormat::kLlamaPython}) {
    EXPECT_EQ(RequiredCall({.calls = format}, LampTools(), {}, NoNotes()), nullptr);
    EXPECT_EQ(CallMarker(format), "");
  }
}

}  // namespace
}  // namespace nibble
