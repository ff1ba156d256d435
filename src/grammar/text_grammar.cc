// SPDX-License-Identifier: Apache-2.0
// Grammars as text, in the notation of GBNF:
//   root ::= "a" item{1,3} | [^b-d]   # one rule for each name, in any order and over any lines
//   item ::= (digit | .) "\n"?
// A rule ends where the next name with ::= begins. Escapes are those of pattern_reader.h.
#include <set>
#include <utility>

#include "base/utf8.h"
#include "grammar/grammar.h"
#include "grammar/pattern_reader.h"

namespace nibble {
namespace grammar {
namespace {

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class TextGrammarParser {
 public:
  TextGrammarParser(std::string_view source, GrammarBuilder* builder)
      : reader_(source, builder->where()), builder_(builder) {}

  Expr Parse() {
    for (SkipSpace(); !reader_.done(); SkipSpace()) {
      const std::string name = TakeName();
      SkipSpace();
      if (!reader_.Take("::=")) reader_.Refuse("::= is wanted after the name \"{}\"", name);
      const int32_t rule = Rule(name);
      if (!defined_.insert(rule).second) reader_.Refuse("rule \"{}\" is there twice", name);
      builder_->SetRule(rule, Alternatives(0));
    }
    const auto root = builder_->FindRule("root");
    if (!root || !defined_.contains(*root)) reader_.Refuse("no rule \"root\"");
    return Reference(*root);
  }

 private:
  void SkipSpace() {
    for (;;) {
      if (reader_.Peek() == '#') {
        while (!reader_.done() && reader_.Peek() != '\n') reader_.TakeChar();
      }
      if (!reader_.Take(" ") && !reader_.Take("\t") && !reader_.Take("\n") && !reader_.Take("\r")) {
        return;
      }
    }
  }

  std::string TakeName() {
    std::string name;
    while (IsNameByte(reader_.Peek())) name += static_cast<char>(reader_.TakeChar());
    if (name.empty()) reader_.Refuse("a rule's name is wanted");
    return name;
  }

  int32_t Rule(const std::string& name) {
    const auto known = builder_->FindRule(name);
    return known ? *known : builder_->AddRule(name);
  }

  bool AtNextRule() const {
    size_t ahead = 0;
    while (IsNameByte(reader_.Peek(ahead))) ++ahead;
    if (ahead == 0) return false;
    while (reader_.Peek(ahead) == ' ' || reader_.Peek(ahead) == '\t') ++ahead;
    return reader_.Peek(ahead) == ':' && reader_.Peek(ahead + 1) == ':' &&
           reader_.Peek(ahead + 2) == '=';
  }

  Expr Alternatives(int depth) {
    return reader_.TakeAlternatives([&] { return Terms(depth); });
  }

  Expr Terms(int depth) {
    std::vector<Expr> terms;
    for (SkipSpace(); !reader_.done() && reader_.Peek() != '|' && reader_.Peek() != ')';
         SkipSpace()) {
      if (AtNextRule()) break;
      Expr term = Atom(depth);
      int64_t min = 0, max = 0;
      if (reader_.TakeRepetition(&min, &max)) term = Repeat(std::move(term), min, max);
      terms.push_back(std::move(term));
    }
    return Sequence(std::move(terms));
  }

  Expr Atom(int depth) {
    if (reader_.Take("(")) {
      if (depth >= GrammarLimits::kGroupDepth) {
        reader_.Refuse("( ) nest over {} deep", GrammarLimits::kGroupDepth);
      }
      Expr inside = Alternatives(depth + 1);
      if (!reader_.Take(")")) reader_.Refuse(") is missing");
      return inside;
    }
    if (reader_.Take("\"")) return TakeLiteral();
    if (reader_.Take("[")) return CharClass(reader_.TakeClass());
    if (reader_.Take(".")) return CharClass(AllCharacters());
    if (IsNameByte(reader_.Peek())) return Reference(Rule(TakeName()));
    reader_.Refuse("\"{}\" is none of \"literal\", [class], ., ( ) or a name", reader_.Peek());
  }

  Expr TakeLiteral() {
    std::string text;
    while (!reader_.Take("\"")) {
      if (reader_.done()) reader_.Refuse("\" is missing");
      uint32_t c = 0;
      if (reader_.Take("\\")) {
        const CharRanges set = reader_.TakeEscape();
        if (set.size() != 1 || set[0].first != set[0].last) reader_.Refuse("a class in \" \"");
        c = set[0].first;
      } else {
        c = reader_.TakeChar();
      }
      AppendUtf8(c, &text);
    }
    return Literal(text);
  }

  PatternReader reader_;
  GrammarBuilder* builder_;
  std::set<int32_t> defined_;
};

}  // namespace

Expr TextRules(GrammarBuilder* builder, std::string_view source) {
  return TextGrammarParser(source, builder).Parse();
}

}  // namespace grammar

std::shared_ptr<const Grammar> TextGrammar(std::string_view source, const std::string& where) {
  GrammarBuilder builder(where);
  const grammar::Expr root = grammar::TextRules(&builder, source);
  return builder.Compile(root);
}

}  // namespace nibble
