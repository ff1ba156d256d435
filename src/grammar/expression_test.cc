// SPDX-License-Identifier: Apache-2.0
#include "grammar/expression.h"

#include <algorithm>
#include <chrono>

#include "base/utf8.h"
#include "grammar/grammar_testing.h"

namespace nibble::grammar {
namespace {

using test::Accepts;
using test::ErrorOf;

std::shared_ptr<const Grammar> Compiled(const Expr& root) {
  return GrammarBuilder("test").Compile(root);
}

// The definition of an expression: returns where the texts that begin at `at` and match it end.
std::set<size_t> Ends(const Expression& e, const std::vector<Expr>& rules, std::string_view text,
                      size_t at) {
  using Kind = Expression::Kind;
  switch (e.kind) {
    case Kind::kLiteral:
      return text.substr(at).starts_with(e.literal) ? std::set{at + e.literal.size()}
                                                    : std::set<size_t>{};
    case Kind::kBytes:
      return at < text.size() && e.bytes[static_cast<uint8_t>(text[at])] ? std::set{at + 1}
                                                                         : std::set<size_t>{};
    case Kind::kSequence: {
      std::set<size_t> ends = {at};
      for (const Expr& part : e.parts) {
        std::set<size_t> next;
        for (const size_t end : ends) next.merge(Ends(*part, rules, text, end));
        ends = next;
      }
      return ends;
    }
    case Kind::kChoice: {
      std::set<size_t> ends;
      for (const Expr& part : e.parts) ends.merge(Ends(*part, rules, text, at));
      return ends;
    }
    case Kind::kRepeat: {
      std::set<size_t> ends, now = {at}, all;
      // Every round takes a byte or none of the rest do: text.size() more are enough.
      const int64_t max = e.min + static_cast<int64_t>(text.size()) + 1;
      for (int64_t round = 0; round <= (e.max == kUnbounded ? max : std::min(e.max, max));
           ++round) {
        if (round >= e.min) all.insert(now.begin(), now.end());
        std::set<size_t> next;
        for (const size_t end : now) next.merge(Ends(*e.parts[0], rules, text, end));
        now = next;
      }
      return all;
    }
    case Kind::kRule:
      return Ends(*rules[static_cast<size_t>(e.id)], rules, text, at);
    default:
      return {};
  }
}

Expr RandomExpression(Rng* rng, int depth, int32_t rules) {
  const auto part = [&] { return RandomExpression(rng, depth - 1, rules); };
  switch (rng->Below(depth <= 0 ? 3 : 8)) {
    case 0:
      return Literal(std::string(1, static_cast<char>('a' + rng->Below(3))));
    case 1: {
      const char* literals[] = {"", "ab", "ba", "aab", "c"};
      return Literal(literals[rng->Below(5)]);
    }
    case 2: {
      ByteSet set;
      for (char c = 'a'; c <= 'c'; ++c) set[static_cast<uint8_t>(c)] = rng->Below(2) == 0;
      return ByteClass(set);
    }
    case 3:
    case 4: {
      std::vector<Expr> parts;
      for (uint64_t n = rng->Below(4); n-- > 0;) parts.push_back(part());
      return Sequence(std::move(parts));
    }
    case 5: {
      std::vector<Expr> parts;
      for (uint64_t n = rng->Below(4); n-- > 0;) parts.push_back(part());
      return Choice(std::move(parts));
    }
    case 6: {
      const auto min = static_cast<int64_t>(rng->Below(3));
      const auto more = static_cast<int64_t>(rng->Below(6));
      return Repeat(part(), min, more == 5 ? kUnbounded : min + more);
    }
    default:
      return rules > 0 ? Reference(static_cast<int32_t>(rng->Below(static_cast<uint64_t>(rules))))
                       : part();
  }
}

std::string RandomText(Rng* rng, size_t longest) {
  std::string text;
  for (uint64_t n = rng->Below(longest + 1); n-- > 0;) {
    text += static_cast<char>('a' + rng->Below(3));
  }
  return text;
}

// Rules name earlier ones only; recursion has tests of its own.
TEST(Expressions, MeanWhatTheirPartsMean) {
  Rng rng(1);
  int accepted = 0, refused = 0, none = 0;
  for (int run = 0; run < 3000; ++run) {
    GrammarBuilder builder("test");
    std::vector<Expr> rules;
    for (int32_t rule = 0; rule < 2; ++rule) {
      rules.push_back(RandomExpression(&rng, 2, rule));
      builder.AddRule(std::to_string(rule), rules.back());
    }
    const Expr root = RandomExpression(&rng, 3, 2);
    std::shared_ptr<const Grammar> grammar;
    const std::string error = ErrorOf([&] { grammar = builder.Compile(root); });
    if (!error.empty()) {
      ASSERT_EQ(error, "test: no text satisfies it");
      ++none;
    }
    for (int i = 0; i < 30; ++i) {
      const std::string text = RandomText(&rng, i < 4 ? 1 : 7);
      const bool expected = Ends(*root, rules, text, 0).contains(text.size());
      ASSERT_EQ(grammar != nullptr && Accepts(grammar, text), expected) << run << ": " << text;
      ++(expected ? accepted : refused);
    }
  }
  EXPECT_GT(accepted, 5000);
  EXPECT_GT(refused, 5000);
  EXPECT_GT(none, 10);
}

// Every text that the automaton lets begin can be completed: greedy shortest search finds an end.
TEST(Expressions, NoBeginningIsADeadEnd) {
  Rng rng(2);
  for (int run = 0; run < 300; ++run) {
    const Expr root = RandomExpression(&rng, 4, 0);
    std::shared_ptr<const Grammar> grammar;
    if (!ErrorOf([&] { grammar = Compiled(root); }).empty()) continue;
    Automaton automaton(grammar);
    // All text states, and those from which an end can be reached.
    std::vector<Automaton::TextState> states = {automaton.start()};
    std::vector<std::pair<size_t, Automaton::TextState>> edges;
    for (size_t i = 0; i < states.size() && states.size() < 300; ++i) {
      for (char c = 'a'; c <= 'c'; ++c) {
        const auto to = automaton.Step(states[i], static_cast<uint8_t>(c));
        if (to == Automaton::kDead) continue;
        edges.emplace_back(i, to);
        if (std::find(states.begin(), states.end(), to) == states.end()) states.push_back(to);
      }
    }
    if (states.size() >= 300) continue;
    std::set<Automaton::TextState> ending;
    for (bool grew = true; grew;) {
      grew = false;
      for (const auto state : states) {
        if (automaton.MayEnd(state)) grew = ending.insert(state).second || grew;
      }
      for (const auto& [from, to] : edges) {
        if (ending.contains(to)) grew = ending.insert(states[from]).second || grew;
      }
    }
    EXPECT_EQ(ending.size(), states.size()) << run;
  }
}

TEST(Expressions, ClassesOfCharactersAreTheirUtf8) {
  Rng rng(3);
  const uint32_t edges[] = {0,      0x7F,   0x80,   0x7FF,   0x800,   0xFFF,   0x1000,
                            0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0x10FFFF};
  const auto code_point = [&] {
    const uint32_t near = edges[rng.Below(std::size(edges))] + static_cast<uint32_t>(rng.Below(5));
    const uint32_t c = rng.Below(2) == 0 ? near : static_cast<uint32_t>(rng.Below(0x110000));
    return c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF) ? uint32_t{'a'} : c;
  };
  for (int run = 0; run < 200; ++run) {
    CharRanges ranges;
    for (uint64_t n = rng.Below(4); n-- > 0;) {
      const uint32_t a = code_point(), b = code_point();
      ranges.push_back({std::min(a, b), std::max(a, b)});
    }
    const bool others = rng.Below(2) == 0;
    const auto in = [&](uint32_t c) {
      return others !=
             std::ranges::any_of(ranges, [&](CharRange r) { return c >= r.first && c <= r.last; });
    };
    // Two in a row, so that a wrong length shows.
    const Expr set = CharClass(others ? Complement(ranges) : ranges);
    std::shared_ptr<const Grammar> grammar;
    ErrorOf([&] { grammar = Compiled(Sequence({set, set})); });
    for (int i = 0; i < 100; ++i) {
      uint32_t a = code_point();
      if (i % 2 == 0 && !ranges.empty()) {
        const CharRange& range = ranges[rng.Below(ranges.size())];
        const uint32_t near[] = {range.first, range.last, range.first - 1, range.last + 1};
        a = near[rng.Below(4)];
        if (a > 0x10FFFF || (a >= 0xD800 && a <= 0xDFFF)) continue;
      }
      const uint32_t b = code_point();
      std::string text;
      AppendUtf8(a, &text);
      AppendUtf8(b, &text);
      ASSERT_EQ(grammar != nullptr && Accepts(grammar, text), in(a) && in(b)) << a << " " << b;
      ASSERT_FALSE(grammar != nullptr && Accepts(grammar, text.substr(0, text.size() - 1)));
    }
  }
}

TEST(Expressions, AnyTextIsUtf8) {
  Rng rng(4);
  Automaton automaton(Compiled(AnyText()));
  int valid = 0;
  for (int run = 0; run < 5000; ++run) {
    const uint8_t some[] = {'a',  0x80, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2,
                            0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5};
    std::string text;
    for (uint64_t n = rng.Below(5); n-- > 0;) text += static_cast<char>(some[rng.Below(13)]);
    ASSERT_EQ(automaton.Accepts(text), IsValidUtf8(text));
    valid += IsValidUtf8(text) ? 1 : 0;
  }
  EXPECT_GT(valid, 500);
}

TEST(Expressions, LargeCountsAreCounted) {
  const Expr a = Literal("a"), b = Literal("b");
  const auto exactly = Compiled(Sequence({Repeat(a, 1000, 1000), b}));
  EXPECT_TRUE(Accepts(exactly, std::string(1000, 'a') + "b"));
  EXPECT_FALSE(Accepts(exactly, std::string(999, 'a') + "b"));
  EXPECT_FALSE(Accepts(exactly, std::string(1001, 'a') + "b"));
  EXPECT_LT(exactly->program().states.size(), 10u);
  const auto range = Compiled(Repeat(Choice({a, Literal("bb")}), 5, 100'000));
  EXPECT_TRUE(Accepts(range, "aabbaa"));
  EXPECT_FALSE(Accepts(range, "aabba"));
  EXPECT_FALSE(Accepts(range, "aabbaab"));
  const auto min = Compiled(Repeat(a, 500, kUnbounded));
  EXPECT_FALSE(Accepts(min, std::string(499, 'a')));
  EXPECT_TRUE(Accepts(min, std::string(5000, 'a')));
  const auto empty = Compiled(Repeat(Optional(a), 300, 400));
  EXPECT_TRUE(Accepts(empty, ""));
  EXPECT_TRUE(Accepts(empty, std::string(400, 'a')));
  EXPECT_FALSE(Accepts(empty, std::string(401, 'a')));
  EXPECT_EQ(ErrorOf([&] { Compiled(Repeat(a, 0, 1'000'001)); }),
            "test: repeated over 1000000 times");
}

TEST(Expressions, RecursionCountsBracketsUpToItsLevels) {
  GrammarBuilder builder("test");
  const int32_t pair = builder.AddRule("pair");
  const Expr inner = Reference(pair);
  builder.SetRule(pair, Sequence({Literal("("), Repeat(inner, 0, kUnbounded), Literal(")")}));
  const auto grammar = builder.Compile(inner);
  EXPECT_TRUE(Accepts(grammar, "()"));
  EXPECT_TRUE(Accepts(grammar, "(()(()))"));
  EXPECT_FALSE(Accepts(grammar, "(()(())"));
  EXPECT_FALSE(Accepts(grammar, "()()"));
  const auto nested = [](size_t n) { return std::string(n, '(') + std::string(n, ')'); };
  EXPECT_TRUE(Accepts(grammar, nested(GrammarLimits::kNesting + 1)));
  EXPECT_FALSE(Accepts(grammar, nested(GrammarLimits::kNesting + 2)));

  // Recursion at the end of a rule is a list and no nesting.
  GrammarBuilder lists("test");
  const int32_t list = lists.AddRule("list");
  lists.SetRule(list,
                Sequence({Literal("a"), Optional(Sequence({Literal(","), Reference(list)}))}));
  std::string text = "a";
  for (int i = 0; i < 1000; ++i) text += ",a";
  EXPECT_TRUE(Accepts(lists.Compile(Reference(list)), text));
}

TEST(Expressions, WhatCannotBeCompiledIsSaid) {
  EXPECT_EQ(ErrorOf([] { Compiled(Choice({})); }), "test: no text satisfies it");
  GrammarBuilder left("test");
  const int32_t x = left.AddRule("x"), y = left.AddRule("y");
  left.SetRule(x, Sequence({Optional(Literal("a")), Reference(y), Literal("b")}));
  left.SetRule(y, Choice({Literal("c"), Sequence({Repeat(Literal("d"), 0, 9), Reference(x)})}));
  EXPECT_EQ(ErrorOf([&] { left.Compile(Reference(x)); }).substr(0, 37),
            "test: rule \"x\" may begin with itself;");
  GrammarBuilder endless("test");
  const int32_t z = endless.AddRule("z");
  endless.SetRule(z, Sequence({Literal("("), Reference(z), Literal(")")}));
  EXPECT_EQ(ErrorOf([&] { endless.Compile(Reference(z)); }), "test: no text satisfies it");
  GrammarBuilder undefined("test");
  const int32_t u = undefined.AddRule("u");
  EXPECT_EQ(ErrorOf([&] { undefined.Compile(Reference(u)); }), "test: rule \"u\" is not defined");
}

TEST(Expressions, LargeOnesEndInTime) {
  const auto begun = std::chrono::steady_clock::now();
  // Doubling: 2^40 expressions of 40 nodes.
  Expr doubled = Literal("a");
  for (int i = 0; i < 40; ++i) doubled = Sequence({doubled, doubled});
  EXPECT_NE(ErrorOf([&] { Compiled(doubled); }), "");
  Expr deep = Literal("a");
  for (int i = 0; i < 1000; ++i) deep = Optional(Sequence({deep, Literal("b")}));
  EXPECT_EQ(ErrorOf([&] { Compiled(deep); }), "test: nested too deeply");
  // 100,000 ways to count: refused while it runs, and the automaton can go on.
  const Expr a = Repeat(Literal("a"), 0, kUnbounded);
  const Expr counted = Repeat(Choice({Literal("a"), Literal("aa")}), 0, 100'000);
  Automaton automaton(Compiled(Sequence({counted, counted, Literal("b")})));
  EXPECT_NE(ErrorOf([&] {
              automaton.Accepts(std::string(5000, 'a'));
            }).find("the grammar is too ambiguous"),
            std::string::npos);
  EXPECT_TRUE(automaton.Accepts("aaab"));
  // The last a but 200: a table would have 2^200 states.
  Automaton counting(
      Compiled(Sequence({Repeat(Choice({Literal("a"), Literal("b")}), 0, kUnbounded), Literal("a"),
                         Repeat(Choice({Literal("a"), Literal("b")}), 200, 200)})));
  Rng rng(5);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += rng.Below(2) == 0 ? 'a' : 'b';
  EXPECT_EQ(counting.Accepts(text), text[text.size() - 201] == 'a');
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
}

}  // namespace
}  // namespace nibble::grammar
