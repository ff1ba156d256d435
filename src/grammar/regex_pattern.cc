// SPDX-License-Identifier: Apache-2.0
#include "grammar/regex_pattern.h"

#include <utility>

#include "grammar/grammar.h"
#include "grammar/pattern_reader.h"

namespace nibble {
namespace grammar {
namespace {

class RegexParser {
 public:
  RegexParser(std::string_view pattern, const std::string& where, bool search,
              const std::function<Expr(const CharRanges&)>& character)
      : reader_(pattern, where), search_(search), character_(character) {}

  Expr Whole() {
    std::vector<Expr> alternatives;
    do {
      std::vector<Expr> parts;
      if (!reader_.Take("^") && search_) parts.push_back(Anything());
      parts.push_back(Terms(0));
      if (!reader_.Take("$") && search_) parts.push_back(Anything());
      alternatives.push_back(Sequence(std::move(parts)));
    } while (reader_.Take("|"));
    if (!reader_.done()) reader_.Refuse("{}", reader_.Peek() == ')' ? ") without (" : kAnchor);
    return Choice(std::move(alternatives));
  }

 private:
  static constexpr const char* kAnchor = "^ and $ are supported at the ends of the pattern only";

  Expr Anything() const { return Repeat(character_(AllCharacters()), 0, kUnbounded); }

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
      if (kind == '=' || kind == '!' || behind) reader_.Refuse("look-around is not supported");
      reader_.Refuse("groups with names or flags are not supported; use (?: )");
    }
    Expr inside = Alternatives(depth + 1);
    if (!reader_.Take(")")) reader_.Refuse("{}", reader_.done() ? ") is missing" : kAnchor);
    return inside;
  }

  Expr Atom(int depth) {
    if (reader_.Take("(")) return Group(depth);
    if (reader_.Take("[")) return character_(reader_.TakeClass());
    if (reader_.Take("\\")) {
      if (reader_.Peek() == 'b' || reader_.Peek() == 'B') {
        reader_.Refuse("word boundaries are not supported");
      }
      return character_(reader_.TakeEscape());
    }
    if (reader_.Take(".")) {
      return character_(Complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
    }
    const char next = reader_.Peek();
    if (next == '^') reader_.Refuse("{}", kAnchor);
    if (next == '*' || next == '+' || next == '?') reader_.Refuse("{} has nothing to repeat", next);
    if (next == '{') reader_.Refuse("{{ has nothing to repeat; write \\{{ for the sign");
    const uint32_t c = reader_.TakeChar();
    return character_({{c, c}});
  }

  PatternReader reader_;
  bool search_;
  const std::function<Expr(const CharRanges&)>& character_;
};

}  // namespace

Expr ParseRegex(std::string_view pattern, const std::string& where, bool search,
                const std::function<Expr(const CharRanges&)>& character) {
  return RegexParser(pattern, where, search, character).Whole();
}

Expr Regex(std::string_view pattern, const std::string& where) {
  return ParseRegex(pattern, where, false, [](const CharRanges& set) { return CharClass(set); });
}

}  // namespace grammar

std::shared_ptr<const Grammar> RegexGrammar(std::string_view pattern, const std::string& where) {
  return GrammarBuilder(where).Compile(grammar::Regex(pattern, where));
}

}  // namespace nibble
