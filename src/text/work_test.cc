// SPDX-License-Identifier: Apache-2.0
// Hostile tokenizers and templates: each ends soon, with an error that names the bound. A case
// counts on bounds in steps and bytes; the cap on its time is only a net, ten times what it takes
// under the sanitizers.
#include "text/work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <functional>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/regex.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

using testing::HasSubstr;

std::string Repeat(const std::string& text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

// The error of `act`, "" if there is none.
std::string ErrorOf(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  std::string error;
  try {
    act();
  } catch (const Error& e) {
    error = e.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  EXPECT_LT(error.size(), 500u);
  return error;
}

// Characters a..c, space, "▁" and the special token "<s>".
Json Base() {
  return Json::parse(R"({
    "added_tokens": [{"id": 5, "content": "<s>", "special": true}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, " ": 3, "▁": 4}, "merges": []}})");
}
Json With(const std::string& key, const Json& value) {
  Json json = Base();
  json[key] = value;
  return json;
}
Tokenizer Make(const Json& json) {
  return Tokenizer::Parse(json.dump(), "t.json");
}

Json Sequence(const std::string& list, const Json& step, size_t count) {
  Json steps = Json::array();
  for (size_t i = 0; i < count; ++i) steps.push_back(step);
  return {{"type", "Sequence"}, {list, steps}};
}
Json Replace(const std::string& kind, const std::string& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}
Json Split(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}

const std::string kTooMuch = " steps to match or to write, the limit";

struct TokenizerAttack {
  const char* name;
  std::function<Json()> file;
  std::function<std::string()> text;  // to encode
};

class WorkOfEncoding : public testing::TestWithParam<TokenizerAttack> {};

TEST_P(WorkOfEncoding, IsBounded) {
  const Tokenizer tokenizer = Make(GetParam().file());
  const std::string text = GetParam().text();
  const std::string error = ErrorOf([&] { tokenizer.Encode(text); });
  EXPECT_THAT(error, HasSubstr(kTooMuch));
  EXPECT_THAT(error, testing::StartsWith("t.json"));
  EXPECT_THAT(error, HasSubstr(fmt::format("a text of {} bytes", text.size())));
}

INSTANTIATE_TEST_SUITE_P(
    All, WorkOfEncoding,
    testing::Values(
        TokenizerAttack{"DoublingLiterals",
                        [] {
                          return With("normalizer",
                                      Sequence("normalizers", Replace("String", "a", "aa"), 60));
                        },
                        [] { return "a"; }},
        TokenizerAttack{"DoublingPatterns",
                        [] {
                          return With("normalizer",
                                      Sequence("normalizers", Replace("Regex", "[ab]", "ab"), 60));
                        },
                        [] { return "a"; }},
        TokenizerAttack{"LongPrefixOfEveryPart",
                        [] {
                          return With("normalizer", {{"type", "Prepend"},
                                                     {"prepend", std::string(1 << 20, 'a')}});
                        },
                        [] { return Repeat("a<s>", 2'000); }},
        TokenizerAttack{"DoublingBytes",
                        [] {
                          return With("pre_tokenizer",
                                      Sequence("pretokenizers",
                                               {{"type", "ByteLevel"}, {"use_regex", false}}, 60));
                        },
                        [] { return "\u00E9"; }},
        TokenizerAttack{"CombiningMarksOutOfOrder",  // sorted by insertion
                        [] {
                          return With("normalizer", {{"type", "NFC"}});
                        },
                        [] { return Repeat("\u0301", 50'000) + Repeat("\u0323", 50'000); }},
        TokenizerAttack{"PatternScansToTheEnd",
                        [] { return With("pre_tokenizer", Split("a*[bc]")); },
                        [] { return Repeat("a", 200'000); }},
        TokenizerAttack{"PatternLooksAheadToTheEnd",
                        [] { return With("pre_tokenizer", Split("a(?=a*c|a)")); },
                        [] { return Repeat("a", 200'000); }},
        TokenizerAttack{"PatternBacktracks",
                        [] { return With("pre_tokenizer", Split("a*a*a*[bc]")); },
                        [] { return Repeat("a", 200'000); }},
        TokenizerAttack{"PatternIsExponential",
                        [] { return With("pre_tokenizer", Split("(a|aa)+$")); },
                        [] { return Repeat("a", 200) + "c"; }},
        TokenizerAttack{
            "PatternCountsFar",
            [] { return With("pre_tokenizer", Split(Repeat("a{60000}b|", 300) + "a{60000}c")); },
            [] { return Repeat(Repeat("a", 59'999) + " ", 4); }},
        TokenizerAttack{"PatternOfANormalizer",
                        [] { return With("normalizer", Replace("Regex", "a*[bc]", "x")); },
                        [] { return Repeat("a", 200'000); }},
        TokenizerAttack{"AddedTokensWithOnePrefix",
                        [] {
                          Json json = Base();
                          for (int i = 0; i < 300; ++i) {
                            json["added_tokens"].push_back(
                                {{"id", 6 + i},
                                 {"content", Repeat("a", 4'000) + std::to_string(i)},
                                 {"normalized", false}});
                          }
                          return json;
                        },
                        [] { return Repeat("a", 200'000); }},
        TokenizerAttack{
            "AddedTokenTakesAllSpaceAfterIt",
            [] {
              Json json = Base();
              json["added_tokens"].push_back({{"id", 3}, {"content", " "}, {"rstrip", true}});
              return json;
            },
            [] { return Repeat(" ", 200'000); }}),
    [](const auto& param) { return param.param.name; });

TEST(WorkOfDecoding, IsBounded) {
  const Json doubling = Sequence("decoders", Replace("String", "a", "aa"), 60);
  const Tokenizer doubles = Make(With("decoder", doubling));
  EXPECT_THAT(ErrorOf([&] { doubles.Decode(std::vector<int32_t>{0}, false); }),
              HasSubstr(kTooMuch));
  StreamDecoder stream(doubles, false);
  EXPECT_THAT(ErrorOf([&] { stream.Push(0); }), HasSubstr(kTooMuch));
  // Small for one token, not for a stream of them: a pattern that matches nothing, and spaces held
  // back as they may be the last.
  Json grows = With("decoder", Replace("Regex", "c*", Repeat("a", 20'000)));
  const Tokenizer each = Make(grows);
  EXPECT_EQ(each.Decode(std::vector<int32_t>{2}, false).size(), 40'000u);
  EXPECT_THAT(ErrorOf([&] { each.Decode(std::vector<int32_t>(100'000, 2), false); }),
              HasSubstr(kTooMuch));
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1'000'000'000}};
  const Tokenizer holds = Make(With(
      "decoder", {{"type", "Sequence"}, {"decoders", Json::array({{{"type", "Fuse"}}, strip})}}));
  EXPECT_THAT(ErrorOf([&] { holds.Decode(std::vector<int32_t>(1'000'000, 3), false); }),
              HasSubstr(kTooMuch));
}

TEST(WorkOfDecoding, GrowsWithTheText) {
  // A step that makes three bytes of each one stays within the bound.
  const Tokenizer tokenizer = Make(With("decoder", Replace("String", " ", "▁")));
  std::string text;
  StreamDecoder stream(tokenizer, false);
  for (int i = 0; i < 1'000'000; ++i) text += stream.Push(3);
  EXPECT_EQ(text.size() + stream.Flush().size(), 3'000'000u);
}

TEST(WorkOfEncoding, OrdinaryStepsFit) {
  // The most that real files do to a text, over texts that make the most of it.
  Json json =
      With("normalizer", {{"type", "Sequence"},
                          {"normalizers", Json::array({{{"type", "NFKD"}},
                                                       {{"type", "Prepend"}, {"prepend", "▁"}},
                                                       Replace("String", " ", "▁")})}});
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", Json::array({Split(R"(\p{N}{1,3})"),
                                                          Split(R"(\s*[\r\n]+|\s+(?!\S)|\s+)"),
                                                          {{"type", "Punctuation"}},
                                                          {{"type", "ByteLevel"}}})}};
  const Tokenizer tokenizer = Make(json);
  for (const char* unit : {"\uFDFA", " ", "a", "9", "\n", "a ", "é", "\u0301a", ". ", "a\n \n"}) {
    const std::string text = Repeat(unit, 300'000 / std::string(unit).size());
    EXPECT_EQ(ErrorOf([&] { tokenizer.Encode(text); }), "") << unit;
  }
}

// Work that is not far below the bounds is done, and work above them is soon refused.
TEST(WorkOfEncoding, BeginsAndGrowsWithTheText) {
  // Each of n matches looks at the rest: n^2 / 2 bytes, a step for 4 of them. 4,000,000 steps and
  // 512 for each byte are enough for 3,000, not for 12,000.
  const Tokenizer scans = Make(With("pre_tokenizer", Split("a*[bc]")));
  EXPECT_EQ(ErrorOf([&] { scans.Encode(Repeat("a", 3'000)); }), "");
  EXPECT_THAT(ErrorOf([&] { scans.Encode(Repeat("a", 12'000)); }), HasSubstr(kTooMuch));
  // 8 steps for each byte written: 64 bytes for one, beside what finding it takes.
  const auto grows = [](size_t times) {
    const Json replace = Replace("String", "a", Repeat("b", times));
    return ErrorOf([&] { Make(With("normalizer", replace)).Encode(Repeat("a", 100'000)); });
  };
  EXPECT_EQ(grows(48), "");
  EXPECT_THAT(grows(160), HasSubstr(kTooMuch));
}

TEST(WorkOfLoading, GrowsWithTheFile) {
  Json json = With("normalizer", Replace("String", "a", "b"));
  for (int i = 0; i < 100; ++i) {
    json["added_tokens"].push_back(
        {{"id", 6 + i}, {"content", Repeat("a", 8'000) + std::to_string(i)}});
  }
  EXPECT_EQ(ErrorOf([&] { Make(json); }), "");
}

TEST(Work, EndsWithTheLastStep) {
  Work work("w", 2);
  EXPECT_FALSE(work.Take(kStepsPerInput + 2 * kStepsPerInputByte + 1));
  EXPECT_TRUE(work.Take(kStepsPerInput + 2 * kStepsPerInputByte));
  EXPECT_FALSE(work.Take(1));
  work.Allow(1);
  EXPECT_TRUE(work.Take(kStepsPerInputByte));
  EXPECT_THAT(ErrorOf([&] { work.Charge(1); }), HasSubstr("w: a text of 3 bytes"));
}

TEST(WorkOfPatterns, IsOneBudgetOfAllMatches) {
  const Regex regex("(?:a*[bc])|a", Regex::Syntax::kPattern, "p");
  const std::string text = Repeat("a", 3'000);
  // Each match looks at the rest: 3,000^2 / 2 bytes, a step for 4 of them and for each item.
  uint64_t steps = 1'000'000;
  for (; steps < 8'000'000; steps += 10'000) {
    Work work("w", 0);
    ASSERT_TRUE(work.Take(kStepsPerInput - std::min(steps, kStepsPerInput)));
    if (steps > kStepsPerInput) work.Allow((steps - kStepsPerInput) / kStepsPerInputByte);
    size_t matches = 0;
    const std::string error =
        ErrorOf([&] { regex.ForEachMatch(text, &work, [&](size_t, size_t) { ++matches; }); });
    if (error.empty()) break;
    EXPECT_THAT(error, HasSubstr("p: a text of"));
    EXPECT_GT(matches, 0u);
    EXPECT_LT(matches, text.size());
  }
  EXPECT_GT(steps, 3'000u * 3'000 / 2 / 4);
  EXPECT_LT(steps, 3'000u * 3'000);
}

}  // namespace
}  // namespace nibble
