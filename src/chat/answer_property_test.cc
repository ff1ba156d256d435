// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "base/rng.h"
#include "base/utf8.h"
#include "chat/answer_testing.h"

namespace nibble::test {
namespace {

using Kind = AnswerEvent::Kind;

Meaning MeaningOf(const AnswerExample& example, bool tokens) {
  return test::MeaningOf(example.calls, tokens, example.begins_in_reasoning);
}

// The meaning when text pieces are cut at `cuts` (positions in the answer).
std::string CutMeaning(const AnswerExample& example, bool tokens, const std::vector<size_t>& cuts) {
  Meaning meaning = MeaningOf(example, tokens);
  size_t begin = 0;
  for (const AnswerPiece& piece : PiecesOf(ExampleFormat(example.calls, tokens), example.answer)) {
    const size_t end = begin + piece.text.size();
    if (piece.marker) {
      meaning.Marker(piece.text);
    } else {
      size_t from = begin;
      for (const size_t cut : cuts) {
        if (cut <= from || cut >= end) continue;
        meaning.Push(std::string_view(piece.text).substr(from - begin, cut - from));
        from = cut;
      }
      meaning.Push(std::string_view(piece.text).substr(from - begin));
    }
    begin = end;
  }
  return meaning.Finish();
}

std::vector<size_t> Borders(const std::string& text) {
  std::vector<size_t> borders;
  for (size_t i = 1; i < text.size(); ++i) {
    if (!IsUtf8Continuation(text[i])) borders.push_back(i);
  }
  return borders;
}

TEST(AnswerProperty, CutsDoNotMatter) {
  for (const AnswerExample& example : AnswerExamples()) {
    SCOPED_TRACE(example.answer);
    const std::vector<size_t> borders = Borders(example.answer);
    for (const bool tokens : {false, true}) {
      EXPECT_EQ(CutMeaning(example, tokens, borders), example.meaning);
      const bool pairs = borders.size() < 60;
      for (size_t i = 0; i < borders.size(); ++i) {
        ASSERT_EQ(CutMeaning(example, tokens, {borders[i]}), example.meaning) << borders[i];
        for (size_t j = i + 1; pairs && j < borders.size(); ++j) {
          ASSERT_EQ(CutMeaning(example, tokens, {borders[i], borders[j]}), example.meaning);
        }
      }
    }
  }
}

// The text of every event is whole characters.
TEST(AnswerProperty, EventsAreWholeCharacters) {
  for (const AnswerExample& example : AnswerExamples()) {
    AnswerParser parser(ExampleFormat(example.calls, false), {"f", "get_weather"});
    for (size_t at = 0; at < example.answer.size();) {
      const size_t size = Utf8Length(example.answer[at]);
      for (const AnswerEvent& event : parser.Push(example.answer.substr(at, size))) {
        EXPECT_TRUE(IsValidUtf8(event.text)) << example.answer;
      }
      at += size;
    }
  }
}

TEST(AnswerProperty, CompleteArgumentsAreJson) {
  int calls = 0;
  for (const AnswerExample& example : AnswerExamples()) {
    // These examples end or break within the arguments.
    if (example.answer.find("cut") != std::string::npos ||
        example.answer.find(": 1]") != std::string::npos)
      continue;
    Meaning meaning = MeaningOf(example, false);
    meaning.Push(example.answer);
    meaning.Finish();
    for (const AnswerEvent& event : meaning.events()) {
      if (event.kind != Kind::kCallArguments) continue;
      EXPECT_TRUE(ParseJson(event.text, "arguments").is_object()) << event.text;
      ++calls;
    }
  }
  EXPECT_GE(calls, 25);
}

// The part of a text that events must contain if there is no call: blanks and the signs of
// reasoning may be lost.
std::string WithoutSigns(std::string text) {
  std::erase_if(text, IsBlank);
  for (const std::string sign : {"<think>", "</think>", "[THINK]", "[/THINK]"}) {
    for (size_t at; (at = text.find(sign)) != std::string::npos;) text.erase(at, sign.size());
  }
  return text;
}

// Checks what holds for every answer, even a malformed one: cuts do not matter, events are in
// order, and without a call no text is lost.
void CheckPromises(CallFormat calls, bool begins_in_reasoning, const std::string& answer) {
  const AnswerExample example{calls, answer, "", begins_in_reasoning};
  Meaning meaning = MeaningOf(example, false);
  meaning.Push(answer);
  const std::string whole = meaning.Finish();
  EXPECT_EQ(CutMeaning(example, false, Borders(answer)), whole) << answer;
  bool open = false, made = false;
  std::string text;
  for (const AnswerEvent& event : meaning.events()) {
    const bool begin = event.kind == Kind::kCallBegin, end = event.kind == Kind::kCallEnd;
    EXPECT_EQ(open, end || event.kind == Kind::kCallArguments) << answer;
    open = (open || begin) && !end;
    made = made || begin;
    if (event.kind == Kind::kText || event.kind == Kind::kReasoning) text += event.text;
  }
  EXPECT_FALSE(open);
  if (made || calls == CallFormat::kHarmony) return;
  EXPECT_EQ(WithoutSigns(text), WithoutSigns(answer)) << answer;
  const bool may_reason = begins_in_reasoning || answer.find("hink>") != std::string::npos;
  if (!may_reason && calls != CallFormat::kMistral) {
    EXPECT_EQ(text, answer);
  }
}

TEST(AnswerProperty, MalformedAnswersLoseNothing) {
  for (const AnswerExample& example : AnswerExamples()) {
    const std::string& answer = example.answer;
    std::vector<size_t> borders = Borders(answer);
    borders.push_back(answer.size());
    size_t begin = 0;
    for (const size_t border : borders) {
      CheckPromises(example.calls, example.begins_in_reasoning, answer.substr(0, border));
      std::string without = answer;
      without.erase(begin, border - begin);
      CheckPromises(example.calls, example.begins_in_reasoning, without);
      begin = border;
    }
  }
}

// Random words of all formats, in any order.
TEST(AnswerProperty, RandomAnswersKeepThePromises) {
  const std::vector<std::string> words = {"<tool_call>",
                                          "</tool_call>",
                                          "<function=",
                                          "f>",
                                          "<parameter=",
                                          "s>",
                                          "</parameter>",
                                          "[",
                                          "</function>",
                                          "<arg_key>s</arg_key>",
                                          "<arg_value>",
                                          "</arg_value>",
                                          "<|tool_call|>",
                                          "<|/tool_call|>",
                                          "<|tool_call>",
                                          "call:f{",
                                          "<tool_call|>",
                                          "<|\"|>",
                                          "s:",
                                          "{\"name\": \"f\"",
                                          ", \"arguments\": ",
                                          "{\"a\": 1}",
                                          "}",
                                          "]",
                                          "[f(a=",
                                          "'x'",
                                          ")",
                                          "[TOOL_CALLS]",
                                          "f",
                                          "[ARGS]",
                                          "<|channel|>",
                                          "commentary",
                                          " to=functions.f",
                                          "\n",
                                          "<|message|>",
                                          "<|end|>",
                                          "<|start|>assistant",
                                          "<|call|>",
                                          "<|python_tag|>",
                                          "{",
                                          "\"",
                                          "\\",
                                          "<",
                                          "é",
                                          " ",
                                          ";",
                                          ",",
                                          "1"};
  Rng rng(7);
  for (int run = 0; run < 8000; ++run) {
    std::string answer;
    for (size_t i = 1 + rng.Below(14); i > 0; --i) answer += words[rng.Below(words.size())];
    CheckPromises(static_cast<CallFormat>(rng.Below(kCallFormats)), false, answer);
  }
}

double Seconds(CallFormat calls, const std::string& answer) {
  const std::clock_t start = std::clock();  // of this process: the machine may be busy
  Meaning meaning = test::MeaningOf(calls, false);
  for (size_t at = 0; at < answer.size(); at += 64) meaning.Push(answer.substr(at, 64));
  meaning.Finish();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Four times the bytes take about four times the time; of quadratic work it would be 16 times.
TEST(AnswerProperty, TimeIsLinear) {
  const std::vector<std::pair<CallFormat, std::string>> openings = {
      {CallFormat::kNone, ""},
      {CallFormat::kHermes, ""},
      {CallFormat::kHermes, "<tool_call>"},
      {CallFormat::kHermes, R"(<tool_call>{"arguments": )"},
      {CallFormat::kHermes, R"(<tool_call>{"name": "f", "arguments": {"a": ")"},
      {CallFormat::kXml, "<tool_call><function=f><parameter=s>"},
      {CallFormat::kXml, "<tool_call><function=f><parameter=o>"},
      {CallFormat::kGlm, "<tool_call>f<arg_key>s</arg_key><arg_value>"},
      {CallFormat::kGranite, ""},
      {CallFormat::kGemma, "<|tool_call>call:f{s:<|\"|>"},
      {CallFormat::kGemma, "<|tool_call>call:f{o:"},
      {CallFormat::kLlamaJson, ""},
      {CallFormat::kLlamaPython, "[f(a="},
      {CallFormat::kLlamaPython, "[f(a='"},
      {CallFormat::kMistral, R"([TOOL_CALLS]f[ARGS]{"a": ")"},
      {CallFormat::kHarmony, ""},
      {CallFormat::kHarmony, "<|channel|>final<|message|>"}};
  for (const auto& [calls, opening] : openings) {
    for (const std::string word : {"<", "{", "\"\\", "\n"}) {
      std::string small = opening, large = opening;
      while (small.size() < size_t{1} << 18) small += word;
      while (large.size() < size_t{1} << 20) large += word;
      const double min = std::min(Seconds(calls, small), Seconds(calls, small));
      EXPECT_LT(Seconds(calls, large), 10 * min + 0.1) << opening << word;
    }
  }
}

TEST(AnswerProperty, WhatIsHeldIsBounded) {
  const std::string opening = R"(<tool_call>{"arguments": {"a": ")";
  Meaning meaning = test::MeaningOf(CallFormat::kHermes, false);
  meaning.Push(opening);
  const std::string max(size_t{1} << 20, 'x');
  meaning.Push(max);
  EXPECT_EQ(meaning.events().size(), 1u);  // the held bytes have become text
  EXPECT_EQ(meaning.Finish(), "T(" + opening + max + ")");
}

}  // namespace
}  // namespace nibble::test
