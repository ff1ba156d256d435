// SPDX-License-Identifier: Apache-2.0
#include "grammar/json_text.h"

#include <utility>

namespace nibble {
namespace grammar {
namespace {

constexpr int kIndent = 32;
const CharRanges kEscaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};

// A rule that is made once.
template <typename Body>
Expr Shared(GrammarBuilder* builder, const char* name, const Body& body) {
  if (const auto known = builder->FindRule(name)) return Reference(*known);
  const int32_t rule = builder->AddRule(name);
  builder->SetRule(rule, body());
  return Reference(rule);
}

Expr AsciiClass(std::string_view characters) {
  CharRanges set;
  for (const char c : characters) set.push_back({static_cast<uint8_t>(c), static_cast<uint8_t>(c)});
  return CharClass(std::move(set));
}

Expr HexDigit() {
  return CharClass({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
}

// \uHHHH: a character, or two halves of one.
Expr UnicodeEscape() {
  const Expr hex = HexDigit();
  const Expr single = Choice({
      Sequence({CharClass({{'0', '9'}, {'A', 'C'}, {'a', 'c'}, {'E', 'F'}, {'e', 'f'}}), hex}),
      Sequence({AsciiClass("Dd"), Digit('0', '7')}),
  });
  const Expr high = Sequence({AsciiClass("Dd"), AsciiClass("89ABab"), hex, hex});
  const Expr low = Sequence({AsciiClass("Dd"), CharClass({{'C', 'F'}, {'c', 'f'}}), hex, hex});
  return Choice({Sequence({single, hex, hex}), Sequence({high, Literal("\\u"), low})});
}

std::string EscapedChar(uint32_t c) {
  const Json text = std::string(1, static_cast<char>(c));
  const std::string quoted = JsonDump(text);
  return quoted.substr(1, quoted.size() - 2);
}

Expr Digits(int64_t min, int64_t max) {
  return Repeat(Digit(), min, max);
}

}  // namespace

std::string JsonDump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Expr JsonSpace(GrammarBuilder* builder) {
  return Shared(builder, "JSON space", [] {
    return Choice({Literal(""), Literal(" "),
                   Sequence({Literal("\n"), Repeat(AsciiClass(" \t"), 0, kIndent)})});
  });
}

Expr SpacedJson(GrammarBuilder* builder, Expr value) {
  return Sequence({JsonSpace(builder), std::move(value)});
}

Expr JsonColon() {
  return Sequence({Literal(":"), Optional(Literal(" "))});
}

Expr JsonCharacter(GrammarBuilder* builder) {
  return Shared(builder, "JSON character", [] {
    const Expr escape =
        Choice({AsciiClass("\"\\/bfnrt"), Sequence({Literal("u"), UnicodeEscape()})});
    return Choice({CharClass(Complement(kEscaped)), Sequence({Literal("\\"), escape})});
  });
}

Expr JsonCharacter(const CharRanges& set) {
  std::vector<Expr> all = {CharClass(Difference(set, kEscaped))};
  for (const CharRange& range : Difference(set, Complement(kEscaped))) {
    for (uint32_t c = range.first; c <= range.last; ++c) all.push_back(Literal(EscapedChar(c)));
  }
  return Choice(std::move(all));
}

Expr JsonString(GrammarBuilder* builder) {
  return Shared(builder, "JSON string", [&] {
    return Sequence({Literal("\""), Repeat(JsonCharacter(builder), 0, kUnbounded), Literal("\"")});
  });
}

Expr JsonInteger(GrammarBuilder* builder) {
  return Shared(builder, "JSON integer", [] {
    return Choice({Literal("0"),
                   Sequence({Optional(Literal("-")), Digit('1'), Digits(0, kNumberDigits - 1)})});
  });
}

Expr JsonNumber(GrammarBuilder* builder) {
  return Shared(builder, "JSON number", [] {
    const Expr whole = Choice({Literal("0"), Sequence({Digit('1'), Digits(0, kNumberDigits - 1)})});
    const Expr fraction = Sequence({Literal("."), Digits(1, kNumberDigits)});
    const Expr exponent = Sequence({AsciiClass("eE"), Optional(AsciiClass("+-")), Digits(1, 2)});
    return Sequence({Optional(Literal("-")), whole, Optional(fraction), Optional(exponent)});
  });
}

Expr JsonComma(GrammarBuilder* builder) {
  return Sequence({Literal(","), JsonSpace(builder)});
}

Expr JsonBrackets(GrammarBuilder* builder, char open, char close, Expr inside) {
  const Expr space = JsonSpace(builder);
  return Sequence({Literal(std::string(1, open)), space, std::move(inside), space,
                   Literal(std::string(1, close))});
}

Expr JsonList(GrammarBuilder* builder, const Expr& part, int64_t min, int64_t max) {
  const int64_t more = max == kUnbounded ? kUnbounded : max - 1;
  const Expr some = Sequence(
      {part, Repeat(Sequence({JsonComma(builder), part}), std::max<int64_t>(min, 1) - 1, more)});
  return min == 0 ? Optional(some) : some;
}

Expr JsonConstant(GrammarBuilder* builder, const Json& value) {
  if (!value.is_structured()) return Literal(JsonDump(value));
  std::vector<Expr> parts;
  for (const auto& item : value.items()) {
    if (!parts.empty()) parts.push_back(JsonComma(builder));
    if (value.is_object()) {
      parts.push_back(Literal(JsonDump(item.key())));
      parts.push_back(JsonColon());
    }
    parts.push_back(JsonConstant(builder, item.value()));
  }
  return JsonBrackets(builder, value.is_object() ? '{' : '[', value.is_object() ? '}' : ']',
                      Sequence(std::move(parts)));
}

// Arrays and objects hold values one level further down: the outermost is on level 0.
Expr JsonValue(GrammarBuilder* builder) {
  return Shared(builder, "JSON value", [&] {
    const Expr elements = JsonList(builder, JsonValue(builder), 0, kUnbounded);
    const Expr array =
        Shared(builder, "JSON array", [&] { return JsonBrackets(builder, '[', ']', elements); });
    return Choice({Literal("true"), Literal("false"), Literal("null"), JsonString(builder),
                   JsonNumber(builder), array, JsonObject(builder)});
  });
}

Expr JsonObject(GrammarBuilder* builder) {
  return Shared(builder, "JSON object", [&] {
    const Expr member = Sequence({JsonString(builder), JsonColon(), JsonValue(builder)});
    return JsonBrackets(builder, '{', '}', JsonList(builder, member, 0, kUnbounded));
  });
}

}  // namespace grammar

std::shared_ptr<const Grammar> JsonObjectGrammar() {
  GrammarBuilder builder("response_format");
  const grammar::Expr object = grammar::JsonObject(&builder);
  return builder.Compile(grammar::SpacedJson(&builder, object));
}

}  // namespace nibble
