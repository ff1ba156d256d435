// SPDX-License-Identifier: Apache-2.0
#include "grammar/matcher.h"

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/utf8.h"
#include "grammar/grammar_testing.h"

namespace nibble {
namespace {

using grammar::Automaton;
using test::HasBit;

const Tokenizer& Gpt2() {
  static const Tokenizer tokenizer = Tokenizer::Load(NIBBLE_SOURCE_DIR "/samples/tiny");
  return tokenizer;
}

struct Walk {
  std::string text;
  bool ended = false;
};

// Goes where masks allow, with a liking for ends; at every step the mask is what the automaton says
// of each token by itself.
Walk RandomWalk(const std::shared_ptr<const Grammar>& grammar, const VocabularyTrie& vocabulary,
                int32_t stop, Rng* rng, int steps, int ending) {
  Matcher matcher(grammar, vocabulary, {stop});
  Automaton alone(grammar);
  Automaton::TextState state = alone.start();
  Walk walk;
  for (int step = 0; step < steps; ++step) {
    const std::span<const uint64_t> mask = matcher.Mask();
    alone.Begin(&state);
    std::vector<int32_t> allowed, closing;
    for (int32_t id = 0; id < vocabulary.vocab_size(); ++id) {
      Automaton::TextState to = state;
      const std::string_view bytes = vocabulary.Bytes(id);
      for (size_t i = 0; i < bytes.size() && to != Automaton::kDead; ++i) {
        to = alone.Step(to, static_cast<uint8_t>(bytes[i]));
      }
      const bool follows =
          id == stop ? alone.MayEnd(state) : !bytes.empty() && to != Automaton::kDead;
      EXPECT_EQ(HasBit(mask, id), follows) << walk.text << " and token " << id << " " << bytes;
      if (!follows) continue;
      allowed.push_back(id);
      if (id == stop || bytes.find_first_of("\"}],:") != bytes.npos) closing.push_back(id);
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing may follow " << walk.text;
      return walk;
    }
    const bool end = step > ending && !closing.empty() && rng->Below(4) > 0;
    const std::vector<int32_t>& from = end ? closing : allowed;
    const int32_t id = from[rng->Below(from.size())];
    EXPECT_TRUE(matcher.Accept(id));
    if (id == stop) {
      EXPECT_TRUE(matcher.ended() && matcher.may_end() && !matcher.Accept(stop));
      EXPECT_TRUE(HasBit(matcher.Mask(), stop));
      walk.ended = true;
      return walk;
    }
    for (const char byte : vocabulary.Bytes(id)) {
      state = alone.Step(state, static_cast<uint8_t>(byte));
    }
    walk.text += vocabulary.Bytes(id);
    EXPECT_EQ(matcher.may_end(), alone.MayEnd(state));
  }
  return walk;
}

TEST(VocabularyTrie, HasEveryToken) {
  const std::vector<std::string> tokens = {"", "ab", "a", "", "abc", "ab", "b", "\xC3", "\xC3\xA9"};
  const VocabularyTrie trie(tokens);
  EXPECT_EQ(trie.vocab_size(), 9);
  EXPECT_EQ(trie.longest(), 3);
  EXPECT_EQ(trie.Bytes(4), "abc");
  EXPECT_EQ(trie.Bytes(9), "");
  EXPECT_EQ(trie.Bytes(-1), "");
  EXPECT_EQ(trie.tokens(), (std::vector<int32_t>{2, 1, 5, 4, 6, 7, 8}));
  std::string path, all;
  for (const auto& node : trie.nodes()) {
    path.resize(static_cast<size_t>(node.depth));
    all += path += static_cast<char>(node.byte);
    all += fmt::format(":{} ", node.first_token);
  }
  EXPECT_EQ(all.substr(0, all.rfind('\xA9') + 3), "a:0 ab:1 abc:3 b:4 \xC3:5 \xC3\xA9:6");
}

TEST(Matcher, MasksAreWhatEachTokenMeans) {
  const VocabularyTrie vocabulary(Gpt2(), Gpt2().vocab_size());
  const auto stop = static_cast<int32_t>(0);
  ASSERT_TRUE(Gpt2().IsSpecial(stop)) << Gpt2().TokenText(stop);
  const std::shared_ptr<const Grammar> grammars[] = {
      JsonObjectGrammar(),
      JsonSchemaGrammar(ParseJson(R"({"type": "object", "required": ["name", "n"], "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 40}, "n": {"type": "integer"},
        "kind": {"enum": ["one", "on\n", "\u00e9\ud83d\ude00", 3, null, [1, {"a": 2}]]},
        "more": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}}})",
                                  "test"),
                        "schema"),
      RegexGrammar("(the|a) ([a-z]+ ){0,30}(end|\\d{2,5}|\u00E9*)\\.", "test"),
      TextGrammar("root ::= \"(\" (root | [^()]*) \")\" [\\u00E0-\\u00FF]", "test")};
  Rng rng(1);
  int ended = 0;
  for (const auto& grammar : grammars) {
    for (int run = 0; run < 3; ++run) {
      const Walk walk = RandomWalk(grammar, vocabulary, stop, &rng, 60, 12);
      if (!walk.ended) continue;
      EXPECT_TRUE(IsValidUtf8(walk.text));
      EXPECT_TRUE(test::Accepts(grammar, walk.text)) << walk.text;
      EXPECT_TRUE(grammar != grammars[0] || Json::accept(walk.text)) << walk.text;
      ++ended;
    }
  }
  EXPECT_GT(ended, 3);
}

// Tokens that cut characters and span many parts of a grammar, by thousands of short walks.
TEST(Matcher, OddTokens) {
  const std::vector<std::string> tokens = test::ByteTokens(
      {"{\"",      "\":",        "\": \"", "\"}",       "\xC3\xA9",  "a\xC3", "\xA9\"",
       "\xF0\x9F", "\x98\x80\"", "ab",     "abc\", \"", "},{",       "]}",    "\\u",
       "\\uD83D",  "\n  ",       "\n  \"", "1.5",       "e5",        "true",  "[[",
       "]]",       "\",\"",      "{}",     "[]",        "{\"a\":[{}"});
  const VocabularyTrie vocabulary(tokens);
  const auto stop = static_cast<int32_t>(tokens.size() - 1);
  const auto grammar = JsonObjectGrammar();
  Rng rng(2);
  int ended = 0;
  for (int run = 0; run < 150; ++run) {
    const Walk walk = RandomWalk(grammar, vocabulary, stop, &rng, 80, 10);
    if (!walk.ended) continue;
    EXPECT_TRUE(Json::accept(walk.text) && walk.text.ends_with('}')) << walk.text;
    ++ended;
  }
  EXPECT_GT(ended, 50);
}

TEST(Matcher, RefusesWithoutAChange) {
  const std::vector<std::string> tokens = test::ByteTokens({"ab", "abx", "b"});
  const VocabularyTrie vocabulary(tokens);
  const int32_t stop = 259;
  Matcher matcher(RegexGrammar("abab", "test"), vocabulary, {stop});
  EXPECT_TRUE(matcher.Accept(256));
  for (const int32_t id : {257, 258, int32_t{'b'}, stop, -1, 260, 1 << 30}) {
    EXPECT_FALSE(matcher.Accept(id)) << id;
  }
  EXPECT_FALSE(matcher.may_end());
  EXPECT_TRUE(matcher.Accept('a'));
  EXPECT_TRUE(matcher.Accept(258));
  EXPECT_TRUE(matcher.may_end());
  EXPECT_FALSE(matcher.Accept('a'));
  EXPECT_TRUE(matcher.Accept(stop));
  EXPECT_TRUE(matcher.ended());
}

TEST(Matcher, SpecialTokensComeAsThemselves) {
  using namespace grammar;  // NOLINT(google-build-using-namespace)
  // 256 is a marker without bytes, 257 one whose text can also be written.
  std::vector<std::string> tokens = test::ByteTokens({"", "<call>"});
  const VocabularyTrie vocabulary(tokens);
  const int32_t stop = 258;
  const auto compiled = GrammarBuilder("test").Compile(
      Sequence({AnyText(), SpecialToken(256), Literal("x"), SpecialToken(257), Literal("y")}));
  Matcher matcher(compiled, vocabulary, {stop});
  EXPECT_TRUE(HasBit(matcher.Mask(), 256));
  EXPECT_TRUE(HasBit(matcher.Mask(), 257));  // as text
  EXPECT_TRUE(matcher.Accept(257));
  EXPECT_TRUE(matcher.Accept(256));
  EXPECT_FALSE(matcher.Accept(256));
  EXPECT_TRUE(matcher.Accept('x'));
  EXPECT_FALSE(HasBit(matcher.Mask(), '<'));  // its text is not the marker
  EXPECT_FALSE(matcher.Accept('<'));
  EXPECT_TRUE(matcher.Accept(257));
  EXPECT_TRUE(matcher.Accept('y'));
  EXPECT_TRUE(matcher.may_end());

  // A token may be read as text and as itself at once; a marker that is a stop id, too, ends a text
  // where it may come.
  Matcher both(GrammarBuilder("test").Compile(
                   Choice({Sequence({Literal("<call>"), Literal("t")}),
                           Sequence({SpecialToken(257), Literal("m"), SpecialToken(stop)})})),
               vocabulary, {stop});
  EXPECT_TRUE(both.Accept(257));
  EXPECT_TRUE(HasBit(both.Mask(), 't') && HasBit(both.Mask(), 'm'));
  EXPECT_FALSE(both.Accept(stop));
  EXPECT_TRUE(both.Accept('m'));
  EXPECT_FALSE(both.may_end());
  EXPECT_TRUE(both.Accept(stop));
  EXPECT_TRUE(both.ended());
}

TEST(Matcher, StopIdsAreNoTextAndMasksNeverEmpty) {
  const std::vector<std::string> tokens = {"a", "b", "\n", ""};
  const VocabularyTrie vocabulary(tokens);
  Matcher matcher(RegexGrammar("[ab\n]*", "test"), vocabulary, {2, 3, 77});
  EXPECT_TRUE(HasBit(matcher.Mask(), 2) && HasBit(matcher.Mask(), 3));
  EXPECT_TRUE(matcher.Accept(2));
  EXPECT_TRUE(matcher.ended());
  // No token writes the c that must come.
  Matcher stuck(RegexGrammar("ac", "test"), vocabulary, {3});
  EXPECT_TRUE(stuck.Accept(0));
  EXPECT_FALSE(stuck.may_end());
  EXPECT_EQ(stuck.Mask()[0], uint64_t{1} << 3);
  EXPECT_TRUE(stuck.Accept(3));
  EXPECT_THROW(Matcher(RegexGrammar("a", "test"), vocabulary, {-1, 77}), Error);
}

// Ambiguity that grows without an end is this matcher's Error and leaves it usable.
TEST(Matcher, TooAmbiguousGrammarsAreErrorsOfTheirText) {
  const std::vector<std::string> tokens = test::ByteTokens({std::string(3000, 'a')});
  const VocabularyTrie vocabulary(tokens);
  Matcher matcher(RegexGrammar("((a|aa){0,100000}){1}(a|aa){0,90000}b", "test"), vocabulary, {257});
  EXPECT_THROW(matcher.Mask(), Error);
  EXPECT_THROW(matcher.Accept(256), Error);
  EXPECT_TRUE(matcher.Accept('a'));
  EXPECT_TRUE(matcher.Accept('b'));
  EXPECT_TRUE(matcher.may_end());
}

// There are more text states than are kept: the automaton forgets them and goes on.
TEST(Matcher, LongTextsWithManyStates) {
  const std::vector<std::string> tokens = test::ByteTokens();
  const VocabularyTrie vocabulary(tokens);
  Matcher matcher(RegexGrammar("(\"[ab]{20000,50000}\",?)*", "test"), vocabulary, {256});
  for (int text = 0; text < 2; ++text) {
    EXPECT_TRUE(matcher.Accept('"'));
    for (int i = 0; i < 25'000; ++i) {
      ASSERT_EQ(HasBit(matcher.Mask(), '"'), i >= 20'000) << i;
      ASSERT_TRUE(matcher.Accept(i % 3 == 0 ? 'a' : 'b'));
    }
    EXPECT_TRUE(matcher.Accept('"'));
    EXPECT_TRUE(matcher.may_end());
    EXPECT_TRUE(matcher.Accept(','));
  }
}

// Times for people, on the tokenizer of a real model where there is one: a GGUF file or folder in
// NIBBLE_GRAMMAR_MODEL.
TEST(Matcher, PrintsTimes) {
  const char* model = std::getenv("NIBBLE_GRAMMAR_MODEL");
  const Tokenizer other = model != nullptr ? Tokenizer::Load(model)
                                           : Tokenizer::Load(NIBBLE_SOURCE_DIR "/samples/tiny");
  // The CPU time of this thread in microseconds: other programs do not count.
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
  };
  const double begun = now();
  const VocabularyTrie vocabulary(other, other.vocab_size());
  fmt::print("{} tokens, {} nodes, trie {:.0f} ms\n", vocabulary.vocab_size(),
             vocabulary.nodes().size(), (now() - begun) / 1000);
  const auto stop = static_cast<int32_t>(vocabulary.vocab_size() - 1);
  const std::string text =
      R"({"name": "A name of some words, \"quoted\" and \u00e9", "age": 1234, )"
      R"("tags": ["first", "second tag", "third"], "inner": {"x": 1.5e3, "y": )"
      R"([true, false, null, {}]}, "note": "A longer text that goes on for a )"
      R"(while, as answers of models do, and then ends."})";
  const std::pair<const char*, std::shared_ptr<const Grammar>> grammars[] = {
      {"json_object", JsonObjectGrammar()},
      {"schema", JsonSchemaGrammar(ParseJson(R"({"type": "object", "properties": {
         "name": {"type": "string", "maxLength": 1000}, "age": {"type": "integer"},
         "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z ]{3,200}$"}},
         "inner": {"type": "object"}, "note": {"type": "string"}},
         "required": ["name", "age", "tags"]})",
                                             "test"),
                                   "schema")},
      {"short strings", JsonSchemaGrammar(ParseJson(R"({"type": "object",
         "additionalProperties": {"anyOf": [{"type": "string", "maxLength": 100},
           {"type": ["integer", "array", "object"]}]}})",
                                                    "test"),
                                          "schema")},
      {"any text", RegexGrammar("[^\\u0000]*", "test")}};
  const std::vector<int32_t> ids = other.EncodePlain(text);
  for (const auto& [name, grammar] : grammars) {
    const double start = now();
    Matcher matcher(grammar, vocabulary, {stop});
    double total = now() - start, worst = 0, hit = 0, accept = 0;
    for (const int32_t id : ids) {
      const double before = now();
      const bool allowed = HasBit(matcher.Mask(), id);
      const double first = now() - before;
      const double again = now();
      matcher.Mask();
      hit += now() - again;
      const double taken = now();
      ASSERT_TRUE(allowed && matcher.Accept(id)) << name << ": " << other.TokenText(id);
      accept += now() - taken;
      total += first;
      worst = std::max(worst, first);
    }
    const auto count = static_cast<double>(ids.size());
    fmt::print(
        "{}: {} tokens, mask {:.1f} us on average, {:.1f} at worst, {:.2f} again, accept "
        "{:.2f}\n",
        name, ids.size(), total / count, worst, hit / count, accept / count);
  }
}

}  // namespace
}  // namespace nibble
