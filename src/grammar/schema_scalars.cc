// SPDX-License-Identifier: Apache-2.0
// Strings and numbers of schemas.
#include <algorithm>

#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/regex_pattern.h"
#include "grammar/string_formats.h"

namespace nibble::grammar {
namespace {

constexpr size_t kPatternWork = 1024;  // bytes of the expressions for a character of a pattern
// Beside a pattern of so many states, texts are no longer than this divided by them.
constexpr int64_t kCountedStates = 10'000;

Expr InQuotes(Expr text) {
  return Sequence({Literal("\""), std::move(text), Literal("\"")});
}

Expr WrittenCharacter(const CharRanges& set) {
  return JsonCharacter(set);
}

// The least and largest number of characters in a text of an expression; the largest may be
// kUnbounded.
struct Lengths {
  int64_t min, max;
};
Lengths LengthsOf(const Expression& e) {
  using Kind = Expression::Kind;
  if (e.kind == Kind::kCharacters) return {1, 1};
  const auto sum = [](int64_t a, int64_t b) {
    return a == kUnbounded || b == kUnbounded ? kUnbounded : a + b;
  };
  if (e.kind == Kind::kRepeat) {
    const Lengths part = LengthsOf(*e.parts[0]);
    const bool endless = (e.max == kUnbounded || part.max == kUnbounded) && part.max != 0;
    return {part.min * e.min, endless ? kUnbounded : part.max * std::max<int64_t>(e.max, 0)};
  }
  Lengths all = {0, 0};
  for (size_t i = 0; i < e.parts.size(); ++i) {
    const Lengths part = LengthsOf(*e.parts[i]);
    if (e.kind == Kind::kSequence) {
      all = {all.min + part.min, sum(all.max, part.max)};
    } else if (i == 0) {
      all = part;
    } else {
      const bool endless = all.max == kUnbounded || part.max == kUnbounded;
      all = {std::min(all.min, part.min), endless ? kUnbounded : std::max(all.max, part.max)};
    }
  }
  return all;
}

bool HasStrings(const std::vector<Json>& values) {
  return std::ranges::any_of(values, [](const Json& value) { return value.is_string(); });
}

std::string Key(const NumberLimits& limits) {
  const auto text = [](const Decimal& d) {
    return fmt::format("{}{}.{}", d.negative ? "-" : "", d.whole, d.fraction);
  };
  std::string key = limits.integer ? "integer" : "number";
  for (const auto& [name, bound] : {std::pair("from", limits.min), std::pair("to", limits.max)}) {
    if (bound) key += fmt::format(" {}{} {}", name, bound->within ? "" : "<", text(bound->value));
  }
  for (const auto& [name, list] :
       {std::pair("of", &limits.multiples), std::pair("not of", &limits.non_multiples),
        std::pair("not", &limits.excluded)}) {
    for (const Decimal& value : *list) key += fmt::format(" {} {}", name, text(value));
  }
  return key;
}

}  // namespace

// One pattern or format, or none, whose texts have the wanted lengths anyway or are repetitions of
// one set of characters: counters cost less than states. nullopt otherwise.
std::optional<Expr> SchemaCompiler::SimpleString(const Constraints& c) {
  const Constraints::Strings& s = c.strings;
  if (s.patterns.size() + s.formats.size() > 1 || !s.non_patterns.empty() ||
      HasStrings(c.excluded)) {
    return std::nullopt;
  }
  if (s.patterns.empty() && s.formats.empty()) {
    if (s.min == 0 && s.max == kUnbounded) return JsonString(builder_);
    return InQuotes(Repeat(JsonCharacter(builder_), s.min, s.max));
  }
  const bool search = !s.patterns.empty();
  const std::string pattern = search ? s.patterns[0] : *FormatPattern(s.formats[0]);
  const RegexPattern parsed = ParseRegex(pattern, "pattern", search);
  if (parsed.looks_ahead()) return std::nullopt;
  Expr text = parsed.Texts();
  const Lengths lengths = LengthsOf(*text);
  const bool fits = lengths.min >= s.min &&
                    (s.max == kUnbounded || (lengths.max != kUnbounded && lengths.max <= s.max));
  if (!fits) {
    const bool repeats = text->kind == Expression::Kind::kRepeat &&
                         text->parts[0]->kind == Expression::Kind::kCharacters;
    if (!repeats) return std::nullopt;
    const int64_t min = std::max(text->min, s.min);
    int64_t max = s.max;
    if (text->max != kUnbounded) max = max == kUnbounded ? text->max : std::min(max, text->max);
    if (max != kUnbounded && max < min) return Choice({});
    text = Repeat(text->parts[0], min, max);
  }
  return InQuotes(MapCharacters(text, WrittenCharacter));
}

TextSet SchemaCompiler::StringSet(const Constraints& c, Where at) {
  const Constraints::Strings& s = c.strings;
  TextSet set = TextSet::All();
  // A constraint that cannot be held, or joined with the rest, is left out.
  const auto narrow = [&](const auto& narrower) { Held(at, [&] { set = Paid(at, narrower); }); };
  for (const std::string& pattern : s.patterns) {
    narrow([&] { return set.And(PatternSet(pattern, "pattern", true)); });
  }
  for (const std::string& format : s.formats) {
    narrow([&] {
      return set.And(TextSet::Of(ParseRegex(*FormatPattern(format), "format", false).Texts()));
    });
  }
  for (const std::string& pattern : s.non_patterns) {
    narrow([&] { return set.Without(PatternSet(pattern, "pattern", true)); });
  }
  std::vector<Expr> excluded;
  for (const Json& value : c.excluded) {
    if (value.is_string()) excluded.push_back(Literal(value.get<std::string>()));
  }
  narrow([&] { return set.Without(TextSet::Of(Choice(std::move(excluded)))); });
  if (s.min > 0 || s.max != kUnbounded) {
    const auto states = static_cast<int64_t>(set.size());
    const int64_t counted = std::max(s.min, std::max<int64_t>(kCountedStates / states, 1));
    const int64_t max = s.max == kUnbounded ? kUnbounded : std::min(s.max, counted);
    narrow([&] { return set.And(TextSet::OfLengths(s.min, max)); });
  }
  return set;
}

// Sets of characters with escapes take many states: each is a rule of its own.
Expr SchemaCompiler::Written(const TextSet& texts) {
  return texts.Write(builder_, [this](const CharRanges& set) {
    std::string key = "characters";
    for (const CharRange& range : set) key += fmt::format(" {:x}-{:x}", range.first, range.last);
    return Known(key, [&] { return JsonCharacter(set); });
  });
}

Expr SchemaCompiler::String(const Constraints& c, Where at) {
  if (c.strings.max != kUnbounded && c.strings.max < c.strings.min) return Choice({});
  Constraints known = c;
  std::erase_if(known.strings.patterns, [&](const std::string& pattern) {
    Charge(pattern.size() * kPatternWork, at);
    return !Held(at, [&] { ParseRegex(pattern, "pattern", true); });
  });
  if (const auto simple = SimpleString(known)) return *simple;
  const Constraints::Strings& s = known.strings;
  const std::string key =
      fmt::format("string {} {} {} {} {} {}", s.min, s.max, JsonDump(s.patterns),
                  JsonDump(s.formats), JsonDump(s.non_patterns), JsonDump(known.excluded));
  return Known(key, [&] { return InQuotes(Written(StringSet(known, at))); });
}

Expr SchemaCompiler::Number(const Constraints& c, Where at) {
  NumberLimits limits = c.numbers;
  for (const Json& value : c.excluded) {
    if (value.is_number()) limits.excluded.push_back(ToDecimal(value));
  }
  NumberLimits none;
  none.integer = limits.integer;
  if (limits == none) return limits.integer ? JsonInteger(builder_) : JsonNumber(builder_);
  return Known(Key(limits), [&] {
    std::optional<TextSet> numbers;
    const auto make = [&] { return Numbers(limits); };
    if (!Held(at, [&] { numbers = Paid(at, make); })) {
      limits.multiples.clear();
      limits.non_multiples.clear();
      numbers = Numbers(limits);
    }
    return numbers->Write(builder_, CharClass);
  });
}

}  // namespace nibble::grammar
