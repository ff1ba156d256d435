// SPDX-License-Identifier: Apache-2.0
// Regular expressions against std::regex, and grammars as text.
#include <chrono>
#include <regex>

#include "grammar/grammar_testing.h"

namespace nibble {
namespace {

using test::Accepts;
using test::ErrorOf;

std::string RegexError(const std::string& pattern) {
  return ErrorOf([&] { RegexGrammar(pattern, "guided_regex"); });
}

std::string RandomPattern(Rng* rng, int depth) {
  const auto part = [&] { return RandomPattern(rng, depth - 1); };
  const char* atoms[] = {"a",   "b",   "-",   ".",   "[ab]", "[^a]",  "[a-c-]",
                         "\\d", "\\w", "\\W", "\\s", "\\.",  "\\x61", "1"};
  switch (rng->Below(depth <= 0 ? 2 : 6)) {
    case 0:
    case 1:
      return atoms[rng->Below(std::size(atoms))];
    case 2:
      return part() + part();
    case 3:
      return "(" + part() + "|" + part() + ")";
    case 4: {
      const char* counts[] = {"*", "+", "?", "{2}", "{1,3}", "{0,}", "*?", "{2,}?"};
      return "(?:" + part() + ")" + counts[rng->Below(std::size(counts))];
    }
    default:
      return part() + "|" + part();
  }
}

TEST(Regex, MatchesWhatTheStandardLibraryMatches) {
  Rng rng(1);
  int matched = 0;
  for (int run = 0; run < 1500; ++run) {
    const std::string pattern = RandomPattern(&rng, 3);
    const std::regex reference(pattern, std::regex::ECMAScript);
    const auto grammar = RegexGrammar(pattern, "test");
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (uint64_t n = rng.Below(6); n-- > 0;) text += "aab1-. "[rng.Below(7)];
      const bool expected = std::regex_match(text, reference);
      ASSERT_EQ(Accepts(grammar, text), expected) << pattern << " and " << text;
      matched += expected ? 1 : 0;
    }
  }
  EXPECT_GT(matched, 1000);
}

TEST(Regex, AnchorsAndCharacters) {
  for (const char* pattern : {"^ab|cd$", "^(?:ab|cd)$", "(ab|cd)", "^ab$|^cd$"}) {
    const auto grammar = RegexGrammar(pattern, "test");
    EXPECT_TRUE(Accepts(grammar, "ab") && Accepts(grammar, "cd")) << pattern;
    EXPECT_FALSE(Accepts(grammar, "abx") || Accepts(grammar, "xcd")) << pattern;
  }
  EXPECT_TRUE(Accepts(RegexGrammar("\u00E9+[\u00E0-\u00FF]\\u{1F600}\\uD83D\\uDE00", "test"),
                      "\u00E9\u00E9\u00E7\U0001F600\U0001F600"));
  EXPECT_TRUE(Accepts(RegexGrammar("", "test"), ""));
  EXPECT_FALSE(Accepts(RegexGrammar(".", "test"), "\n"));
  EXPECT_FALSE(Accepts(RegexGrammar(".", "test"), "\xC3"));
  EXPECT_TRUE(Accepts(RegexGrammar("[\\]\\-\\\\]{3}", "test"), "]-\\"));
}

// Passwords, and numbers of which signs and points alone are none.
TEST(Regex, LooksAheadAtTheBeginning) {
  const auto check = [](const char* pattern, std::vector<const char*> good,
                        std::vector<const char*> bad) {
    const auto grammar = RegexGrammar(pattern, "test");
    for (const char* text : good) EXPECT_TRUE(Accepts(grammar, text)) << pattern << ": " << text;
    for (const char* text : bad) EXPECT_FALSE(Accepts(grammar, text)) << pattern << ": " << text;
  };
  check("^(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{4,6}$", {"Abc1", "1bcdeF"},
        {"abc1", "ABCD", "Ab1", "Abcdef1", "Ab1!"});
  check("(?![-+.]*$)[-+]?[0-9]*[.]?[0-9]*", {"1", "-1.5", ".5"}, {"", "-", ".", "+.", "1.5."});
  check("(?!a|b$)[a-c]+|ab", {"ba", "c", "ab"}, {"a", "b", "abc"});
  check("(?<year>[0-9]{4})-(?<month>[0-9]{2})", {"2024-05"}, {"2024"});
}

TEST(Regex, WhatIsNotSupportedIsRefusedByName) {
  const std::pair<const char*, const char*> refused[] = {{"b(?=a)", "at the beginning only"},
                                                         {"(?<!a)b", "look-behind"},
                                                         {"(?i)a", "flags"},
                                                         {"(a)\\1", "back-references"},
                                                         {"\\bword", "word boundaries"},
                                                         {"\\p{L}", "escape \\p"},
                                                         {"a++", "possessive"},
                                                         {"a**", "nothing to repeat"},
                                                         {"*a", "nothing to repeat"},
                                                         {"{2}", "nothing to repeat"},
                                                         {"a{3,2}", "second count"},
                                                         {"a{,2}", "a count is wanted"},
                                                         {"a{1000001}", "at most"},
                                                         {"(a", ") is missing"},
                                                         {"a)", ") without ("},
                                                         {"[a", "] is missing"},
                                                         {"[]", "empty class"},
                                                         {"[b-a]", "not a range"},
                                                         {"[\\d-z]", "not a range"},
                                                         {"[[:alpha:]]", "by name"},
                                                         {"a^b", "at the ends"},
                                                         {"(^a)", "at the ends"},
                                                         {"a$b", "at the ends"},
                                                         {"\\uD800", "no character"},
                                                         {"\\x4", "missing"},
                                                         {"\\", "missing"},
                                                         {"\\u{110000}", "no character"},
                                                         {"\xC3", "UTF-8"},
                                                         {"\\07", "octal"}};
  for (const auto& [pattern, reason] : refused) {
    const std::string error = RegexError(pattern);
    EXPECT_TRUE(error.starts_with("guided_regex: ")) << pattern << ": " << error;
    EXPECT_NE(error.find(reason), std::string::npos) << pattern << ": " << error;
  }
}

TEST(Regex, BombsEndInTime) {
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_NE(RegexError(std::string(100, '(') + "a" + std::string(100, ')')), "");
  EXPECT_NE(RegexError(std::string(300 << 10, 'a')), "");
  std::string nested = "(a|b?)";
  for (int i = 0; i < 20; ++i) nested = "(" + nested + "{0,3}c?)";
  EXPECT_NE(RegexError(nested), "");
  EXPECT_EQ(RegexError("(a{0,100000}){0,9}b"), "");  // nine times, in a loop
  const auto slow =
      RegexGrammar("(a*)*(a+)+(a|a)*(a|aa)+$", "test");  // exponential if tried in turn
  EXPECT_TRUE(Accepts(slow, std::string(3000, 'a')));
  EXPECT_FALSE(Accepts(slow, std::string(3000, 'a') + "b"));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
}

TEST(TextGrammar, ReadsRules) {
  const auto grammar = TextGrammar(R"~(# sums
root   ::= sum "\n"?        # the start
sum ::= term ( [+\-] term )*
term ::=
  "0" | [1-9] digit{0,3}
  | "(" sum ")" | "\u00E9\x41\\\""
digit ::= [0-9])~",
                                   "grammar");
  for (const char* text : {"0", "12+(3-4)\n", "((1))", "9999", "\u00E9A\\\""}) {
    EXPECT_TRUE(Accepts(grammar, text)) << text;
  }
  for (const char* text : {"", "01", "12345", "1+", "(1", "1\n\n"}) {
    EXPECT_FALSE(Accepts(grammar, text)) << text;
  }
  EXPECT_TRUE(Accepts(TextGrammar("root ::= a-b . a_2 a-b ::= \"x\" a_2 ::= [^y]", "g"), "xyz"));
  EXPECT_TRUE(Accepts(TextGrammar("root ::= \"\" | \"a\" root", "g"), "aaa"));
}

TEST(TextGrammar, ErrorsSayWhatAndWhere) {
  const std::pair<const char*, const char*> refused[] = {
      {"", "no rule \"root\""},
      {"root ::= missing", "rule \"missing\" is not defined"},
      {"root ::= \"a\" root ::= \"b\"", "twice"},
      {"root \"a\"", "::= is wanted"},
      {"root ::= \"a", "\" is missing"},
      {"root ::= [a", "] is missing"},
      {"root ::= (\"a\"", ") is missing"},
      {"root ::= \"a\" ) ", "name is wanted"},
      {"root ::= * \"a\"", "is none of"},
      {"root ::= \"a\"**", "is none of"},
      {"root ::= \"\\q\"", "escape \\q"},
      {"root ::= root \"a\" | \"b\"", "may begin with itself"},
      {"root ::= a \"b\"\na ::= \"\" | root", "may begin with itself"},
      {"root ::= \"a\" root", "no text satisfies it"}};
  for (const auto& [source, reason] : refused) {
    const std::string error = ErrorOf([&, text = source] { TextGrammar(text, "grammar"); });
    EXPECT_TRUE(error.starts_with("grammar: ")) << source << ": " << error;
    EXPECT_NE(error.find(reason), std::string::npos) << source << ": " << error;
  }
}

TEST(TextGrammar, LargeOnesEndInTime) {
  const auto begun = std::chrono::steady_clock::now();
  std::string chain = "root ::= r0";
  for (int i = 0; i < 9000; ++i) chain += fmt::format("\nr{} ::= r{}", i, i + 1);
  EXPECT_TRUE(Accepts(TextGrammar(chain + "\nr9000 ::= \"a\"?", "g"), "a"));
  std::string many = "root ::= r0";
  for (int i = 0; i < 12'000; ++i) many += fmt::format("\nr{} ::= \"a\"", i);
  EXPECT_TRUE(Accepts(TextGrammar(many, "g"), "a"));
  // Each rule is twice the one before.
  std::string doubling = "root ::= r0";
  for (int i = 0; i < 60; ++i) doubling += fmt::format("\nr{0} ::= r{1} r{1} | \"b\"", i, i + 1);
  EXPECT_TRUE(Accepts(TextGrammar(doubling + "\nr60 ::= \"a\"", "g"), "b"));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
}

}  // namespace
}  // namespace nibble
