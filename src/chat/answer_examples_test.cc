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
      {kNone, "a <think> b</think>c", "R(a <think> b) T(c)", true},
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
      {kHermes, R"(<tool_call>{"name": "f", "arguments": "{\"a\": \"é\\n\"}"}</tool_call>)",
       R"(C(f|{"a": "é\n"}))"},
      {kHermes, R"(<tool_call>{"arguments": "{\"a\": 1}", "name": "f"}</tool_call>)",
       R"(C(f|{"a": 1}))"},
      {kHermes, R"(<tool_call>{"x": [1, "]"], "name": "f", "arguments": {}, "y": 1.5}</tool_call>)",
       "C(f|{})"},
      {kHermes, R"(<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "f"}]</tool_call>)",
       R"(C(f|{"a": 1}) C(f|{}))"},
      {kHermes, R"(<tool_call>[{"arguments": {"a": 1}, "name": "f"}, {"name": "f"}]</tool_call>)",
       R"(C(f|{"a": 1}) C(f|{}))"},
      {kHermes, R"(<tool_call>{"name": "f", "name": "f"}</tool_call>)",
       R"(C(f) T("f"}</tool_call>))"},
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
      {kXml,
       "<function=f><parameter=s>\na<\n</parameter><parameter=u>\n<</parameter><parameter=w>5"
       "</parameter><parameter=o>{} x</parameter></function>",
       R"(C(f|{"s": "a<", "u": "<", "w": "5", "o": "{} x"}))"},
      {kXml, "<function=f><parameter=" + std::string(300, 'k') + ">is cut",
       "C(f|{) T(" + std::string(11, 'k') + ">is cut)"},
      {kGlm,
       "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a <b>\n\"c\"\n</arg_value>\n<arg_key>n"
       "</arg_key>\n<arg_value>12</arg_value>\n<arg_key>o</arg_key>\n<arg_value>{\"k\": [1, null]}"
       "</arg_value>\n<arg_key>b</arg_key>\n<arg_value>true</arg_value>\n</tool_call>",
       R"(C(f|{"s": "a <b>\n\"c\"\n", "n": 12, "o": {"k": [1, null]}, "b": true}))"},
      {kGlm, "<tool_call>get_weather\n</tool_call>", "C(get_weather|{})"},
      {kGlm,
       "<think>Hm</think>See:\n<tool_call>get_weather</tool_call>\n<tool_call>f<arg_key>s</arg_key>"
       "<arg_value></arg_value><arg_key>zz</arg_key><arg_value>7</arg_value></tool_call>\n",
       "R(Hm) T(See:\n) C(get_weather|{}) C(f|{\"s\": \"\", \"zz\": \"7\"})"},
      {kGlm, "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>cut", R"(C(f|{"s": "cut))"},
      {kGlm, "<tool_call>f\n<arg_key>cut", "C(f|{)"},
      {kGlm, "<tool_call>f is cut", "T(<tool_call>f is cut)"},
      {kGlm, "<tool_call>g\n<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n</tool_call> z",
       "T(<tool_call>g\n<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n</tool_call> z)"},
      {kGlm, R"(<tool_call>{"name": "f"}</tool_call>)",
       R"(T(<tool_call>{"name": "f"}</tool_call>))"},
      {kGranite, R"(<|tool_call|>[{"name": "f", "arguments": {"a": 1, "s": "]", "l": [true]}}])",
       R"(C(f|{"a": 1, "s": "]", "l": [true]}))"},
      {kGranite, R"(<|tool_call|>[{"arguments": {}, "name": "get_weather"}]<|/tool_call|>)",
       "C(get_weather|{})"},
      {kGranite,
       "I ask.\n<|tool_call|> [{\"name\": \"f\"},\n{\"name\": \"get_weather\", \"arguments\": "
       "{\"a\": "
       "null}}]<|/tool_call|>",
       "T(I ask.\n) C(f|{}) C(get_weather|{\"a\": null})"},
      {kGranite, R"(functools[{"name": "f", "arguments": {"a": 1}}])", R"(C(f|{"a": 1}))"},
      {kGranite, "import functools\n\n[x]", "T(import functools\n\n[x])"},
      {kGranite, R"(<tool_call>[{"name": "f", "arguments": {}}])", "C(f|{})"},
      {kGranite, R"(<|tool_call|>[{"name": "f", "arguments": {"a": "cut)", R"(C(f|{"a": "cut))"},
      {kGranite, R"(<|tool_call|>[{"name": "g"}]<|/tool_call|>)",
       R"(T(<|tool_call|>[{"name": "g"}]<|/tool_call|>))"},
      {kGemma,
       "<|tool_call>call:f{s:<|\"|>a \"{<b>}\"\\\n<|'<|\"|>,n:-1.5e3,b:true,o:{k x:[1,null,<|\"|>é"
       "<|\"|>],q:{}},l:[]}<tool_call|>",
       "C(f|{\"s\": \"a \\\"{<b>}\\\"\\\\\\n<|'\", \"n\": -1.5e3, \"b\": true, \"o\": {\"k x\": "
       "[1, "
       "null, \"é\"], \"q\": {}}, \"l\": []})"},
      {kGemma, "<|tool_call>call:get_weather{}<tool_call|>", "C(get_weather|{})"},
      {kGemma,
       "So: <|tool_call>call:f{ s: <|\"|><<|\"|>, <|\"|>t:<|\"|>:None}<tool_call|><|tool_call>"
       "call:f{\"u\": \"\\\"v\", b: False}<tool_call|>",
       R"(T(So: ) C(f|{"s": "<", "t:": null}) C(f|{"u": "\"v", "b": false}))"},
      {kGemma, "<|tool_call>call:f{s:<|\"|>cut", R"(C(f|{"s": "cut))"},
      {kGemma, "<|tool_call>call:f{cut", R"(C(f|{"cut))"},
      {kGemma, "<|tool_call>call:g{a:1}<tool_call|> z", "T(<|tool_call>call:g{a:1}<tool_call|> z)"},
      {kGemma, "<|tool_call>f{a:1}<tool_call|>", "T(<|tool_call>f{a:1}<tool_call|>)"},
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
      {kLlamaPython, "[f (s='a'),f(s='b')]", R"(C(f|{"s": "a"}) C(f|{"s": "b"}))"},
      {kLlamaPython, "[f(o={'a': })] is cut", R"(C(f|{"o": {"a": ) T(})] is cut))"},
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
      {kHarmony,
       "<|channel|>analysis<|message|>Hm.<|end|>\n<|start|>assistant<|channel|>final<|message|>a"
       "<|end|>b",
       "R(Hm.) T(ab)"},
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

// Where the vocabulary has the markers as tokens, the same characters written by other tokens are
// text.
TEST(AnswerParser, QuotedMarkersAreText) {
  using enum CallFormat;
  const std::vector<std::pair<CallFormat, std::string>> answers = {
      {kHermes, R"(<think>a</think><tool_call>{"name": "f", "arguments": {}}</tool_call>)"},
      {kXml, "<tool_call></tool_call>"},
      {kGlm, "<tool_call>f</tool_call>"},
      {kGranite, R"(<|tool_call|>[{"name": "f"}]<|/tool_call|>)"},
      {kGemma, "<|tool_call>call:f{}<tool_call|>"},
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
  meaning.Marker("</tool_call>");  // outside a string it ends the call, which is not complete
  meaning.Push("\n");
  EXPECT_EQ(meaning.Finish(), R"(C(f|{"s": "a</tool_call>b", "t": ))");
}

// The same holds for tags and quotes within calls: a value may contain their characters.
TEST(AnswerParser, QuotedTagsWithinValuesBelongToThem) {
  Meaning glm = MeaningOf(CallFormat::kGlm, true);
  for (const AnswerPiece& piece : std::vector<AnswerPiece>{{true, "<tool_call>"},
                                                           {false, "f"},
                                                           {true, "<arg_key>"},
                                                           {false, "s"},
                                                           {true, "</arg_key>"},
                                                           {true, "<arg_value>"},
                                                           {false, "</arg_value> "},
                                                           {true, "</tool_call>"},
                                                           {true, "</arg_value>"},
                                                           {true, "</tool_call>"}}) {
    glm.Give(piece);
  }
  EXPECT_EQ(glm.Finish(), R"(C(f|{"s": "</arg_value> </tool_call>"}))");
  Meaning gemma = MeaningOf(CallFormat::kGemma, true);
  for (const AnswerPiece& piece : std::vector<AnswerPiece>{{true, "<|tool_call>"},
                                                           {false, "call:f{s:"},
                                                           {true, "<|\"|>"},
                                                           {false, "<|\"|>"},
                                                           {true, "<tool_call|>"},
                                                           {true, "<|\"|>"},
                                                           {false, "}"},
                                                           {true, "<tool_call|>"}}) {
    gemma.Give(piece);
  }
  EXPECT_EQ(gemma.Finish(), R"(C(f|{"s": "<|\"|><tool_call|>"}))");
}

TEST(AnswerParser, MarkersBehindTheBeginningOfACall) {
  Meaning second_id = MeaningOf(CallFormat::kMistral, true);
  second_id.Marker("[TOOL_CALLS]");
  second_id.Push("f");
  second_id.Marker("[CALL_ID]");
  second_id.Push("1");
  second_id.Marker("[CALL_ID]");
  second_id.Push("2");
  EXPECT_EQ(second_id.Finish(), "C(f) T([CALL_ID]2)");
  // "[" may begin a call or the sign of reasoning until the marker comes.
  AnswerFormat format;
  format.calls = CallFormat::kLlamaPython;
  format.reasoning_begin = "[THINK]", format.reasoning_end = "[/THINK]";
  format.markers = {"<|python_start|>"};
  Meaning bracket(AnswerParser(format, {"f"}));
  bracket.Push("[");
  bracket.Marker("<|python_start|>");
  bracket.Push("[f()]");
  EXPECT_EQ(bracket.Finish(), "T([) C(f|{})");
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
  EXPECT_EQ(calls("'<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>'"),
            CallFormat::kGlm);
  EXPECT_EQ(calls("' respond with <|tool_call|> followed by a JSON list'"), CallFormat::kGranite);
  EXPECT_EQ(calls("'<|tool|>' + message['tools'] + '<|/tool|>'"), CallFormat::kGranite);
  EXPECT_EQ(calls("'formatted as functools[{...}]'"), CallFormat::kGranite);
  EXPECT_EQ(calls("'<|tool_call>call:' + name + '{' + '}<tool_call|>'"), CallFormat::kGemma);
  EXPECT_EQ(calls("'[TOOL_CALLS]'"), CallFormat::kMistral);
  EXPECT_EQ(CallFormatName(CallFormat::kGemma), "gemma");
  EXPECT_EQ(CallFormatName(CallFormat::kHarmony), "harmony");
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
  // A token that waits for a call's result ends the answer.
  EXPECT_EQ(DetectAnswerFormat("<arg_key>", none).ends.front(), "<|observation|>");
  EXPECT_EQ(DetectAnswerFormat("<|tool_call>", none).ends.front(), "<|tool_response>");
  EXPECT_TRUE(PromptOpensReasoning(tokens, "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(PromptOpensReasoning(tokens, "<think>\n\n</think>\n\n"));
  EXPECT_FALSE(PromptOpensReasoning(AnswerFormat(), "<think>"));
}

}  // namespace nibble::test
