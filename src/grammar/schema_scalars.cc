// SPDX-License-Identifier: Apache-2.0
// Strings and numbers of schemas.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/regex_pattern.h"

namespace nibble::grammar {
namespace {

constexpr size_t kPatternWork = 1024;  // bytes of the expressions for a character of a pattern

constexpr const char* kDate =
    "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|"
    "(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
constexpr const char* kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
    "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
constexpr const char* kByteNumber = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

// Each is part of what its RFC allows, of bounded length.
std::optional<std::string> FormatPattern(const std::string& format) {
  if (format == "date") return kDate;
  if (format == "time") return kTime;
  if (format == "date-time") return fmt::format("{}T{}", kDate, kTime);
  if (format == "uuid") {
    return "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
  }
  if (format == "email") {
    return "[A-Za-z0-9_%+-]{1,30}(\\.[A-Za-z0-9_%+-]{1,30})?@"
           "([A-Za-z0-9]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?\\.){1,3}[A-Za-z]{2,24}";
  }
  if (format == "ipv4") return fmt::format("({0}\\.){{3}}{0}", kByteNumber);
  return std::nullopt;
}

Expr AnyDigits(size_t count) {
  return Repeat(Digit(), static_cast<int64_t>(count), static_cast<int64_t>(count));
}

// Digits of as many places as `least` that are not below it, or as `most` and not above it.
Expr DigitsFrom(std::string_view least) {
  if (least.empty()) return Literal("");
  const std::string_view rest = least.substr(1);
  std::vector<Expr> all = {Sequence({Digit(least[0], least[0]), DigitsFrom(rest)})};
  if (least[0] < '9') {
    const auto above = static_cast<char>(least[0] + 1);
    all.push_back(Sequence({Digit(above, '9'), AnyDigits(rest.size())}));
  }
  return Choice(std::move(all));
}
Expr DigitsTo(std::string_view most) {
  if (most.empty()) return Literal("");
  const std::string_view rest = most.substr(1);
  std::vector<Expr> all = {Sequence({Digit(most[0], most[0]), DigitsTo(rest)})};
  if (most[0] > '0') {
    const auto below = static_cast<char>(most[0] - 1);
    all.push_back(Sequence({Digit('0', below), AnyDigits(rest.size())}));
  }
  return Choice(std::move(all));
}

// Of one length.
Expr DigitsBetween(std::string_view least, std::string_view most) {
  if (least.empty()) return Literal("");
  const std::string_view rest_least = least.substr(1), rest_most = most.substr(1);
  if (least[0] == most[0]) {
    return Sequence({Digit(least[0], least[0]), DigitsBetween(rest_least, rest_most)});
  }
  std::vector<Expr> all = {Sequence({Digit(least[0], least[0]), DigitsFrom(rest_least)}),
                           Sequence({Digit(most[0], most[0]), DigitsTo(rest_most)})};
  if (most[0] - least[0] > 1) {
    all.push_back(Sequence({Digit(static_cast<char>(least[0] + 1), static_cast<char>(most[0] - 1)),
                            AnyDigits(rest_least.size())}));
  }
  return Choice(std::move(all));
}

// Decimal numbers from least to most, without leading zeros; none where least > most.
Expr Naturals(uint64_t least, uint64_t most) {
  std::vector<Expr> all;
  while (least <= most) {
    const std::string first = std::to_string(least);
    const std::string nines(first.size(), '9');
    const uint64_t last = first.size() < 20 ? std::min<uint64_t>(most, std::stoull(nines)) : most;
    all.push_back(DigitsBetween(first, std::to_string(last)));
    if (last == std::numeric_limits<uint64_t>::max()) break;
    least = last + 1;
  }
  return Choice(std::move(all));
}

constexpr int64_t kLargest = 999'999'999'999'999'999;  // kNumberDigits digits
static_assert(kNumberDigits == 18);

}  // namespace

int64_t SchemaCompiler::Count(const Json& schema, const char* key, int64_t otherwise,
                              Where at) const {
  const auto it = schema.find(key);
  if (it == schema.end()) return otherwise;
  const double count = it->is_number() ? it->get<double>() : -1;
  if (count < 0 || count > GrammarLimits::kRepeat || count != std::floor(count)) {
    Refuse(at, fmt::format("{} must be an integer from 0 to {}", key, GrammarLimits::kRepeat));
  }
  return static_cast<int64_t>(count);
}

Expr SchemaCompiler::String(const Json& schema, Where at) {
  const Expr quote = Literal("\"");
  const bool has_pattern = schema.contains("pattern"), has_format = schema.contains("format");
  const int64_t min = Count(schema, "minLength", 0, at);
  const int64_t max = Count(schema, "maxLength", kUnbounded, at);
  if (max != kUnbounded && max < min) return Choice({});
  if (!has_pattern && !has_format) {
    if (min == 0 && max == kUnbounded) return JsonString(builder_);
    return Sequence({quote, Repeat(JsonCharacter(builder_), min, max), quote});
  }
  if ((has_pattern && has_format) || min > 0 || max != kUnbounded) {
    Refuse(at, "pattern, format and minLength or maxLength of one string are not supported");
  }
  const char* key = has_pattern ? "pattern" : "format";
  if (!schema.at(key).is_string()) Refuse(at, fmt::format("{} must be a string", key));
  std::string pattern = schema.at(key).get<std::string>();
  if (has_format) {
    const auto known = FormatPattern(pattern);
    if (!known) Refuse(at, fmt::format("format \"{}\" is not supported", pattern));
    pattern = *known;
  }
  Charge(pattern.size() * kPatternWork, at);
  const std::string place =
      fmt::format("{}: {}{}{}", builder_->where(), at, at.empty() ? "" : ".", key);
  const auto character = [](const CharRanges& set) { return JsonCharacter(set); };
  return Sequence({quote, ParseRegex(pattern, place, has_pattern, character), quote});
}

// Numbers of at least 0 from `from` to `to`, with a fraction where that stays between them.
Expr SchemaCompiler::Decimals(Bound from, Bound to) {
  const Expr zero = Digit('0', '0');
  const Expr fraction = Optional(Sequence({Literal("."), Repeat(Digit(), 1, kNumberDigits)}));
  const Expr no_fraction = Optional(Sequence({Literal("."), Repeat(zero, 1, kNumberDigits)}));
  const Expr some_fraction = Sequence({Literal("."), Repeat(zero, 0, kNumberDigits - 1), Digit('1'),
                                       Repeat(Digit(), 0, kNumberDigits - 1)});
  const auto at = [](int64_t n) { return Literal(std::to_string(n)); };
  if (from.value > to.value) return Choice({});
  if (from.value == to.value) {
    return from.within && to.within ? Sequence({at(to.value), no_fraction}) : Choice({});
  }
  std::vector<Expr> all = {Sequence({at(from.value), from.within ? fraction : some_fraction}),
                           Sequence({Naturals(static_cast<uint64_t>(from.value) + 1,
                                              static_cast<uint64_t>(to.value) - 1),
                                     fraction})};
  if (to.within) all.push_back(Sequence({at(to.value), no_fraction}));
  return Choice(std::move(all));
}

std::optional<SchemaCompiler::Bound> SchemaCompiler::End(const Json& schema, bool least,
                                                         bool integer, Where at) const {
  std::optional<Bound> end;
  for (const bool within : {true, false}) {
    const char* key = least ? (within ? "minimum" : "exclusiveMinimum")
                            : (within ? "maximum" : "exclusiveMaximum");
    const auto it = schema.find(key);
    if (it == schema.end()) continue;
    if (!it->is_number()) Refuse(at, fmt::format("{} must be a number", key));
    const double number = it->get<double>(), floor = std::floor(number);
    const bool whole = number == floor;
    if (std::abs(number) > static_cast<double>(kLargest) || (!whole && !integer)) {
      Refuse(at, fmt::format("{} {} is not supported: no integer of at most {} digits", key,
                             JsonDump(*it), kNumberDigits));
    }
    Bound bound = {it->is_number_integer() ? it->get<int64_t>() : static_cast<int64_t>(floor),
                   within};
    // floor(x) < x: it is no number of at least x, and one of at most x.
    if (!whole) bound.within = !least;
    const bool tighter = !end || (least ? bound.value > end->value : bound.value < end->value) ||
                         (bound.value == end->value && !bound.within);
    if (tighter) end = bound;
  }
  return end;
}

Expr SchemaCompiler::Number(const Json& schema, bool integer, Where at) {
  const std::optional<Bound> least = End(schema, true, integer, at);
  const std::optional<Bound> most = End(schema, false, integer, at);
  if (!least && !most) return integer ? JsonInteger(builder_) : JsonNumber(builder_);
  Bound from = least.value_or(Bound{-kLargest, true}), to = most.value_or(Bound{kLargest, true});
  std::vector<Expr> all;
  if (integer) {
    from.value += from.within ? 0 : 1;
    to.value -= to.within ? 0 : 1;
    const int64_t positive = std::max<int64_t>(from.value, 0);
    const int64_t negative = std::max<int64_t>(-to.value, 1);
    if (positive <= to.value) {
      all.push_back(Naturals(static_cast<uint64_t>(positive), static_cast<uint64_t>(to.value)));
    }
    if (negative <= -from.value) {
      all.push_back(Sequence({Literal("-"), Naturals(static_cast<uint64_t>(negative),
                                                     static_cast<uint64_t>(-from.value))}));
    }
    return Choice(std::move(all));
  }
  const Bound zero = {0, true}, below_zero = {0, false};  // no -0
  if (to.value >= 0) all.push_back(Decimals(from.value >= 0 ? from : zero, to));
  if (from.value < 0) {
    const Bound nearest = to.value >= 0 ? below_zero : Bound{-to.value, to.within};
    all.push_back(Sequence({Literal("-"), Decimals(nearest, {-from.value, from.within})}));
  }
  return Choice(std::move(all));
}

}  // namespace nibble::grammar
