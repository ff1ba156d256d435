// SPDX-License-Identifier: Apache-2.0
#include "grammar/expression.h"

#include <utility>

#include "base/error.h"

namespace nibble::grammar {
namespace {

using Kind = Expression::Kind;

Expr Made(Expression expression) {
  return std::make_shared<const Expression>(std::move(expression));
}

}  // namespace

Expr Literal(std::string_view bytes) {
  return Made({.kind = Kind::kLiteral, .literal = std::string(bytes)});
}

Expr ByteClass(const ByteSet& bytes) {
  return Made({.kind = Kind::kBytes, .bytes = bytes});
}

Expr CharClass(CharRanges ranges) {
  return Made({.kind = Kind::kCharacters, .characters = NormalRanges(std::move(ranges))});
}

Expr Sequence(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  return Made({.kind = Kind::kSequence, .parts = std::move(parts)});
}

Expr Choice(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  return Made({.kind = Kind::kChoice, .parts = std::move(parts)});
}

Expr Repeat(Expr part, int64_t min, int64_t max) {
  NIBBLE_CHECK(min >= 0 && (max == kUnbounded || max >= min), "{} to {}", min, max);
  return Made({.kind = Kind::kRepeat, .parts = {std::move(part)}, .min = min, .max = max});
}

Expr Optional(Expr part) {
  return Repeat(std::move(part), 0, 1);
}

Expr Reference(int32_t rule) {
  return Made({.kind = Kind::kRule, .id = rule});
}

Expr SpecialToken(int32_t id) {
  return Made({.kind = Kind::kToken, .id = id});
}

Expr MapCharacters(const Expr& expression,
                   const std::function<Expr(const CharRanges&)>& character) {
  if (expression->kind == Kind::kCharacters) return character(expression->characters);
  if (expression->parts.empty()) return expression;
  Expression mapped = *expression;
  for (Expr& part : mapped.parts) part = MapCharacters(part, character);
  return Made(std::move(mapped));
}

Expr Digit(char first, char last) {
  return CharClass({{static_cast<uint32_t>(first), static_cast<uint32_t>(last)}});
}

Expr AnyText() {
  return Repeat(CharClass(AllCharacters()), 0, kUnbounded);
}

}  // namespace nibble::grammar
