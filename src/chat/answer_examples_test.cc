// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "chat/answer_testing.h"

namespace nibble::test {

const std::vector<AnswerExample>& AnswerExamples() {
  using enum CallFormat;
  static const std::vector<AnswerExample> examples = {
      {kNone, "Hello\n", "T(Hello\n)"},
      {kNone, " \n", "T( \n)"},
      {kNone, "<think>\nTwo\nlines.\n</think>\n\nYes.\n", "R(Two\nlines.) T(Yes.\n)"},
      {kNone, "<think>\n\n</think>\n\nYes", "T(Yes)"},
      {kNone, "Use <think> here</think>.", "T(Use <think> here</think>.)"},
      {kNone, "Hm <tool_call></think> So <b>", "R(Hm <tool_call>) T(So <b>)", true},
      {kNone, "<think>a</think>b", "R(a) T(b)", true},
      {kNone, "never <th ends \n", "R(never <th ends)", true},
      {kHermes, R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)",
       R"(C(f|{"a": 1}))"},
      {kHermes,
       "<think>\nPlan\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, "
       "{\"b\": \"}\\\"]\\\\\"}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_weather\", "
       "\"arguments\": {}}\n</tool_call>\n",
       R"(R(Plan) C(f|{"a": [1, {"b": "}\"]\\"}]}) C(get_weather|{}))"},
      {kHermes, "Let me see.\n<tool_call>{\"name\":\"f\"}</tool_call>\nDone <b>",
       "T(Let me see.\n) C(f|{}) T(\nDone <b>)"},
      {kHermes, R"(<tool_call>{"arguments": {"k": "é"}, "id": 7, "name": "f"}</tool_call>)",
       R"(C(f|{"k": "é"}))"},
      {kHermes, R"(<tool_call>{"name": "f", "parameters": null}</tool_call>)", "C(f|{})"},
      {kHermes, R"(<tool_call>{"x": [1, "]"], "name": "f", "arguments": {}, "y": 1.5}</tool_call>)",
       "C(f|{})"},
      {kHermes, R"(<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "f"}]</tool_call>)",
       R"(C(f|{"a": 1}) C(f|{}))"},
      {kHermes, R"(<tool_call>{"name": "g", "arguments": {}}</tool_call> z)",
       R"(T(<tool_call>{"name": "g", "arguments": {}}</tool_call> z))"},
      {kHermes, "<tool_call>no", "T(<tool_call>no)"},
      {kHermes, "<tool_call>[]</tool_call>", "T(<tool_call>[]</tool_call>)"},
      {kHermes, R"(<tool_call><tool_call>{"name": "f"}</tool_call>)", "T(<tool_call>) C(f|{})"},
      {kHermes, R"(<tool_call>{"name": "f"}<tool_call>{"name": "f"})", "C(f|{}) C(f|{})"},
      {kHermes, R"(<tool_call>{"name": "f", "arguments": {"a": "cut)", R"(C(f|{"a": "cut))"},
      {kHermes, R"(<tool_call>{"name": "f", "arguments": {"a": 1]} z)", R"(C(f|{"a": 1) T(]} z))"},
      {kXml,
       "<tool_call>\n<function=f>\n<parameter=s>\nline <b>\n\n\"two\"\\\n</parameter>\n"
       "<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>",
       R"(C(f|{"s": "line <b>\n\n\"two\"\\", "n": 12}))"},
      {kXml,
       "I do.\n<tool_call><function=f><parameter=b>True</parameter><parameter=o>{'a': [1,],}"
       "</parameter><parameter=l>null</parameter><parameter=n>many</parameter><parameter=e>7"
       "</parameter></function><function=get_weather></function></tool_call>\n",
       "T(I do.\n) C(f|{\"b\": true, \"o\": {\"a\": [1]}, \"l\": null, \"n\": \"many\", "
       "\"e\": \"7\"}) C(get_weather|{})"},
      {kXml,
       "<function=f><parameter=r>{\"a\": \"</param\"}</parameter><parameter=u>null</parameter>"
       "<parameter=v>-1.5e3</parameter><parameter=zz>7</parameter></function>",
       R"(C(f|{"r": {"a": "</param"}, "u": "null", "v": -1.5e3, "zz": "7"}))"},
      {kXml, "<tool_call><function=g><parameter=s>1</parameter></function></tool_call>",
       "T(<tool_call><function=g><parameter=s>1</parameter></function></tool_call>)"},
      {kXml, "<tool_call>\n<function=f>\n<parameter=s>\ncut <", "C(f|{\"s\": \"cut )"},
      {kLlamaJson, R"({"name": "f", "parameters": {"a": "x"}})", R"(C(f|{"a": "x"}))"},
      {kLlamaJson,
       R"(<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "f"})",
       "C(f|{}) C(f|{})"},
      {kLlamaJson, R"({"title": "a", "name": "f"})", R"(T({"title": "a", "name": "f"}))"},
      {kLlamaJson, R"(Like {"name": "f"})", R"(T(Like {"name": "f"}))"},
      {kLlamaJson, R"(<|python_tag|>print("hi"))", R"(T(<|python_tag|>print("hi")))"},
      {kLlamaPython, R"([f(a=1, b="x\n'"), get_weather()])",
       R"(C(f|{"a": 1, "b": "x\n'"}) C(get_weather|{}))"},
      {kLlamaPython,
       "[f( s = 'it\\'s \\x41\\u00e9\\101', l=[True, (1, 2,), None], o={'k': -1.5e3, \"q\": {}, },"
       " n=1_000)]",
       "C(f|{\"s\": \"it's \\u0041\\u00e9\\u0041\", \"l\": [true, [1, 2], null], "
       "\"o\": {\"k\": -1.5e3, \"q\": {}}, \"n\": 1000})"},
      {kLlamaPython, R"([f("x")] or [g(a=1)])", R"(T([f("x")] or [g(a=1)]))"},
      {kLlamaPython, "[1, 2]", "T([1, 2])"},
      {kMistral, R"([TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}])",
       R"(C(f|{"a": 1}))"},
      {kMistral, R"([TOOL_CALLS]f[ARGS]{"a": "]"}[TOOL_CALLS]get_weather[CALL_ID]a1b2[ARGS]{})",
       R"(C(f|{"a": "]"}) C(get_weather|{}))"},
      {kMistral, R"([THINK]Hm.[/THINK]See: [TOOL_CALLS]f{"a": 1})",
       R"(R(Hm.) T(See: ) C(f|{"a": 1}))"},
      {kMistral, R"([TOOL_CALLS]g[ARGS]{"a": 1})", R"(T([TOOL_CALLS]g[ARGS]{"a": 1}))"},
      {kHarmony,
       "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final"
       "<|message|>Hello <b><|return|>",
       "R(Hm.) T(Hello <b>)"},
      {kHarmony,
       "<|channel|>analysis<|message|>Go<|end|>\n<|start|>assistant<|channel|>commentary"
       " to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
       R"(R(Go) C(f|{"a": 1}))"},
      {kHarmony,
       " to=functions.f<|channel|>commentary json<|message|>{}<|call|><|start|>assistant to=f"
       "<|channel|>commentary<|message|><|call|>",
       "C(f|{}) C(f|{})"},
      {kHarmony,
       "<|channel|>commentary<|message|>First <|constrain|><|end|><|start|>assistant<|channel|>"
       "commentary to=functions.g<|message|>{}<|call|>",
       "T(First <|constrain|><|start|>assistant<|channel|>commentary to=functions.g<|message|>{})"},
      {kHarmony, "Plain text", "T(Plain text)"},
      {kHarmony, "to", "T(to)"},
      {kHarmony, "more</think><|start|>assistant<|channel|>final<|message|>so",
       "R(more</think>) T(so)", true},
  };
  return examples;
}

TEST(AnswerParser, TellsWhatAnswersMean) {
  for (const AnswerExample& example : AnswerExamples()) {
    for (const bool tokens : {false, true}) {
      SCOPED_TRACE(example.answer + (tokens ? " (tokens)" : ""));
      Meaning meaning = MeaningOf(example.calls, tokens, example.begins_in_reasoning);
      const AnswerFormat format = ExampleFormat(example.calls, tokens);
      for (const AnswerPiece& piece : PiecesOf(format, example.answer)) meaning.Give(piece);
      EXPECT_EQ(meaning.Finish(), example.meaning);
    }
  }
}

// The same texts, where the vocabulary has the markers as tokens and these did not come.
TEST(AnswerParser, QuotedMarkersAreText) {
  using enum CallFormat;
  const std::vector<std::pair<CallFormat, std::string>> answers = {
      {kHermes, R"(<think>a</think><tool_call>{"name": "f", "arguments": {}}</tool_call>)"},
      {kXml, "<tool_call></tool_call>"},
      {kLlamaJson, R"(<|python_tag|>{"name": "f"})"},
      {kMistral, R"([TOOL_CALLS][{"name": "f"}])"}};
  for (const auto& [calls, answer] : answers) {
    Meaning meaning = MeaningOf(calls, true);
    meaning.Push(answer);
    EXPECT_EQ(meaning.Finish(), "T(" + answer + ")");
  }
  Meaning harmony = MeaningOf(kHarmony, true);
  harmony.Give({true, "<|channel|>"});
  harmony.Push("final");
  harmony.Give({true, "<|message|>"});
  harmony.Push("<|end|><|start|>");
  EXPECT_EQ(harmony.Finish(), "T(<|end|><|start|>)");
}

TEST(AnswerParser, MarkersWithinStringsBelongToThem) {
  Meaning meaning = MeaningOf(CallFormat::kHermes, true);
  meaning.Marker("<tool_call>");
  meaning.Push(R"({"name": "f", "arguments": {"s": "a)");
  meaning.Marker("</tool_call>");
  meaning.Push(R"(b", "t": )");
  meaning.Marker("</tool_call>");  // here it ends a call that is not complete
  meaning.Push("\n");
  EXPECT_EQ(meaning.Finish(), R"(C(f|{"s": "a</tool_call>b", "t": ))");
}

TEST(AnswerParser, NamesComeBeforeArgumentsAndArgumentsAsTheyCome) {
  using Kind = AnswerEvent::Kind;
  AnswerParser parser(ExampleFormat(CallFormat::kHermes, false), {"f"});
  EXPECT_TRUE(parser.Push(R"(<tool_call>{"name": "f)").empty());
  EXPECT_EQ(parser.Push("\""), (std::vector<AnswerEvent>{{Kind::kCallBegin, "f"}}));
  EXPECT_EQ(parser.Push(R"(, "arguments": {"a)"),
            (std::vector<AnswerEvent>{{Kind::kCallArguments, R"({"a)"}}));
  EXPECT_EQ(parser.Push(R"(": 1}})"),
            (std::vector<AnswerEvent>{{Kind::kCallArguments, R"(": 1})"}, {Kind::kCallEnd, ""}}));
}

TEST(AnswerParser, OneCallIsTheLastThingIfOnlyOneIsAllowed) {
  Meaning meaning = MeaningOf(CallFormat::kHermes, false, false, /*parallel_calls=*/false);
  meaning.Push(R"(<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "f"}</tool_call> x)");
  EXPECT_EQ(meaning.Finish(), "C(f|{})");
  AnswerParser parser(ExampleFormat(CallFormat::kHermes, false), {"f"}, false);
  parser.Push(R"(<tool_call>{"name": "f")");
  EXPECT_FALSE(parser.ended());
  parser.Push("}");
  EXPECT_TRUE(parser.ended());
}

TEST(AnswerParser, WithoutFunctionsCallsAreText) {
  const std::string call = R"(<tool_call>{"name": "f"}</tool_call>)";
  Meaning meaning(AnswerParser(ExampleFormat(CallFormat::kHermes, false), {}));
  meaning.Push("<think>a</think>" + call);
  EXPECT_EQ(meaning.Finish(), "R(a) T(" + call + ")");
  Meaning harmony(AnswerParser(ExampleFormat(CallFormat::kHarmony, false), {}));
  harmony.Push(
      "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final"
      "<|message|>b");
  EXPECT_EQ(harmony.Finish(), "R(a) T(b)");
}

TEST(AnswerFormat, IsDetectedByTemplateAndVocabulary) {
  const auto none = [](std::string_view) { return false; };
  const auto calls = [&](std::string_view source) {
    return DetectAnswerFormat(source, none).calls;
  };
  EXPECT_EQ(calls("{{ messages }}"), CallFormat::kNone);
  EXPECT_EQ(calls("'<tool_call>'"), CallFormat::kHermes);
  EXPECT_EQ(calls("'<tool_call><function=x>'"), CallFormat::kXml);
  EXPECT_EQ(calls("'[TOOL_CALLS]'"), CallFormat::kMistral);
  EXPECT_EQ(calls("'<|channel|>final<|message|>'"), CallFormat::kHarmony);
  EXPECT_EQ(calls("'{\"name\": function name, \"parameters\": ...}'"), CallFormat::kLlamaJson);
  EXPECT_EQ(calls("'[func_name1(params_name1=params_value1)]'"), CallFormat::kLlamaPython);
  const AnswerFormat named = DetectAnswerFormat("{{ x.split('</think>') }}", none);
  EXPECT_EQ(named.reasoning_begin + named.reasoning_end, "<think></think>");
  EXPECT_TRUE(named.markers.empty());
  const AnswerFormat tokens = DetectAnswerFormat(
      "'<tool_call>'", [](std::string_view text) { return text.find("think") != text.npos; });
  EXPECT_EQ(tokens.reasoning_end, "</think>");
  EXPECT_EQ(tokens.markers, (std::vector<std::string>{"<think>", "</think>"}));
  EXPECT_TRUE(PromptOpensReasoning(tokens, "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(PromptOpensReasoning(tokens, "<think>\n\n</think>\n\n"));
  EXPECT_FALSE(PromptOpensReasoning(AnswerFormat(), "<think>"));
}

}  // namespace nibble::test
