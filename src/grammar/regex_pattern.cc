// SPDX-License-Identifier: Apache-2.0
#include "grammar/regex_pattern.h"

#include <algorithm>
#include <utility>

#include "grammar/grammar.h"
#include "grammar/pattern_reader.h"

namespace nibble {
namespace grammar {
namespace {

class RegexParser {
 public:
  RegexParser(std::string_view pattern, const std::string& where, bool search)
      : reader_(pattern, where), search_(search) {}

  RegexPattern Whole() {
    RegexPattern all;
    do {
      RegexPattern::Alternative one;
      const bool begins = reader_.Take("^") || !search_;
      while (reader_.StartsWith("(?=") || reader_.StartsWith("(?!")) {
        if (!begins) reader_.Refuse("look-ahead is supported behind ^ at the beginning only");
        one.looks.push_back(LookAhead());
      }
      one.text = Ended(begins);
      all.alternatives.push_back(std::move(one));
    } while (reader_.Take("|"));
    if (!reader_.done()) reader_.Refuse("{}", reader_.Peek() == ')' ? ") without (" : kAnchor);
    return all;
  }

 private:
  static constexpr const char* kAnchor = "^ and $ are supported at the ends of the pattern only";

  // Reads terms; in a search, any text may stand before them without ^ and behind them without $.
  Expr Ended(bool begins) {
    std::vector<Expr> parts;
    if (!begins) parts.push_back(AnyText());
    parts.push_back(Terms(0));
    if (!reader_.Take("$") && search_) parts.push_back(AnyText());
    return Sequence(std::move(parts));
  }

  // Reads a (?= ) or (?! ), which looks ahead from the beginning of a text.
  RegexPattern::Look LookAhead() {
    const bool holds = reader_.Take("(?=");
    if (!holds) reader_.Take("(?!");
    std::vector<Expr> alternatives;
    do {
      reader_.Take("^");
      std::vector<Expr> parts = {Terms(1)};
      if (!reader_.Take("$")) parts.push_back(AnyText());
      alternatives.push_back(Sequence(std::move(parts)));
    } while (reader_.Take("|"));
    if (!reader_.Take(")")) reader_.Refuse("{}", reader_.done() ? ") is missing" : kAnchor);
    return {holds, Choice(std::move(alternatives))};
  }

  Expr Alternatives(int depth) {
    return reader_.TakeAlternatives([&] { return Terms(depth); });
  }

  Expr Terms(int depth) {
    std::vector<Expr> terms;
    while (!reader_.done() && reader_.Peek() != '|' && reader_.Peek() != ')' &&
           reader_.Peek() != '$') {
      Expr term = Atom(depth);
      int64_t min = 0, max = 0;
      if (reader_.TakeRepetition(&min, &max)) {
        term = Repeat(std::move(term), min, max);
        if (!reader_.Take("?") && reader_.Peek() == '+') {
          reader_.Refuse("possessive repetitions are not supported");
        }
      }
      terms.push_back(std::move(term));
    }
    return Sequence(std::move(terms));
  }

  Expr Group(int depth) {
    if (depth >= GrammarLimits::kGroupDepth) {
      reader_.Refuse("( ) nest over {} deep", GrammarLimits::kGroupDepth);
    }
    if (!reader_.Take("?:") && reader_.Peek() == '?') {
      const char kind = reader_.Peek(1), second = reader_.Peek(2);
      const bool behind = kind == '<' && (second == '=' || second == '!');
      if (behind) reader_.Refuse("look-behind is not supported");
      if (kind == '=' || kind == '!') {
        reader_.Refuse("look-ahead is supported behind ^ at the beginning only");
      }
      if (kind != '<' || !TakeName()) {
        reader_.Refuse("groups with flags are not supported; use (?: )");
      }
    }
    Expr inside = Alternatives(depth + 1);
    if (!reader_.Take(")")) reader_.Refuse("{}", reader_.done() ? ") is missing" : kAnchor);
    return inside;
  }

  // "?<name>"
  bool TakeName() {
    reader_.Take("?<");
    while (!reader_.done() && reader_.Peek() != '>') reader_.TakeChar();
    return reader_.Take(">");
  }

  Expr Atom(int depth) {
    if (reader_.Take("(")) return Group(depth);
    if (reader_.Take("[")) return CharClass(reader_.TakeClass());
    if (reader_.Take("\\")) {
      if (reader_.Peek() == 'b' || reader_.Peek() == 'B') {
        reader_.Refuse("word boundaries are not supported");
      }
      return CharClass(reader_.TakeEscape());
    }
    if (reader_.Take(".")) {
      return CharClass(Complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
    }
    const char next = reader_.Peek();
    if (next == '^') reader_.Refuse("{}", kAnchor);
    if (next == '*' || next == '+' || next == '?') reader_.Refuse("{} has nothing to repeat", next);
    if (next == '{') reader_.Refuse("{{ has nothing to repeat; write \\{{ for the sign");
    const uint32_t c = reader_.TakeChar();
    return CharClass({{c, c}});
  }

  PatternReader reader_;
  bool search_;
};

}  // namespace

bool RegexPattern::looks_ahead() const {
  return std::ranges::any_of(alternatives,
                             [](const Alternative& one) { return !one.looks.empty(); });
}

Expr RegexPattern::Texts() const {
  std::vector<Expr> all;
  for (const Alternative& one : alternatives) all.push_back(one.text);
  return Choice(std::move(all));
}

RegexPattern ParseRegex(std::string_view pattern, const std::string& where, bool search) {
  return RegexParser(pattern, where, search).Whole();
}

TextSet PatternSet(std::string_view pattern, const std::string& where, bool search) {
  const RegexPattern parsed = ParseRegex(pattern, where, search);
  if (!parsed.looks_ahead()) return TextSet::Of(parsed.Texts());
  TextSet neither = TextSet::All();  // of the alternatives
  for (const RegexPattern::Alternative& one : parsed.alternatives) {
    TextSet texts = TextSet::Of(one.text);
    for (const RegexPattern::Look& look : one.looks) {
      const TextSet ahead = TextSet::Of(look.text);
      texts = look.holds ? texts.And(ahead) : texts.Without(ahead);
    }
    neither = neither.Without(texts);
  }
  return TextSet::All().Without(neither);
}

Expr Regex(GrammarBuilder* builder, std::string_view pattern, const std::string& where) {
  const RegexPattern parsed = ParseRegex(pattern, where, false);
  if (!parsed.looks_ahead()) return parsed.Texts();
  return PatternSet(pattern, where, false).Write(builder, CharClass);
}

}  // namespace grammar

std::shared_ptr<const Grammar> RegexGrammar(std::string_view pattern, const std::string& where) {
  GrammarBuilder builder(where);
  const grammar::Expr texts = grammar::Regex(&builder, pattern, where);
  return builder.Compile(texts);
}

}  // namespace nibble
