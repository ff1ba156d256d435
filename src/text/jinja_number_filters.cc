// SPDX-License-Identifier: Apache-2.0
// The filters that give numbers.
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja_builtins.h"
#include "text/jinja_math.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

// The text without the underscores that may stand between digits; nullopt where they stand
// elsewhere.
std::optional<std::string> WithoutUnderscores(std::string_view text) {
  const auto digit = [&](size_t i) { return i < text.size() && std::isxdigit(text[i]) != 0; };
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && (i == 0 || !digit(i - 1) || !digit(i + 1))) return std::nullopt;
    if (text[i] != '_') plain += text[i];
  }
  return plain;
}

// Python's int(text, base).
std::optional<Value> ParseInteger(std::string_view text, int64_t base) {
  text = Strip(text, Side::kBoth);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const char mark = text.size() > 2 && text[0] == '0' ? text[1] | 0x20 : '\0';
  const int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
  if (marked != 0 && (base == marked || base == 0)) {
    base = marked;
    text.remove_prefix(2);
    if (text.starts_with('_')) text.remove_prefix(1);
  }
  const auto plain = WithoutUnderscores(text);
  if (!plain || plain->empty()) return std::nullopt;
  if (base == 0 && plain->size() > 1 && (*plain)[0] == '0') return std::nullopt;
  const std::string digits = (negative ? "-" : "") + *plain;
  if (base == 10 || base == 0) {
    if (plain->find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
    return MakeInteger(digits);
  }
  if (base < 2 || base > 36) Raise("int: base must be 0 or from 2 to 36");
  int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, number, static_cast<int>(base));
  if (plain->starts_with('-') || result.ptr != end) return std::nullopt;
  if (result.ec != std::errc()) Raise("int: more than 64 bits in base {}", base);
  return number;
}

// Python's float(text); a number out of range is infinite or zero.
std::optional<double> ParseFloat(std::string_view text) {
  text = Strip(text, Side::kBoth);
  if (text.starts_with('+')) text.remove_prefix(text.starts_with("+-") ? 0 : 1);
  const auto plain = WithoutUnderscores(text);
  if (!plain || plain->find('(') != std::string::npos) return std::nullopt;
  double number = 0;
  const char* const end = plain->data() + plain->size();
  const auto result = std::from_chars(plain->data(), end, number);
  if (result.ec == std::errc::invalid_argument || result.ptr != end) return std::nullopt;
  return result.ec == std::errc() ? number : std::strtod(plain->c_str(), nullptr);
}

void RefuseUndefined(const Value& value) {
  if (const Undefined* missing = value.AsUndefined()) Raise("{}", missing->Message());
}

Value ToInt(Context&, const Value& input, const Args& args) {
  RefuseUndefined(input);
  if (input.AsBigInt() != nullptr) return input;
  if (const auto integer = input.AsInt()) return *integer;
  const std::string* text = input.AsString();
  if (auto parsed = text ? ParseInteger(*text, args.Int(1, "base", 10)) : std::nullopt) {
    return *parsed;
  }
  const auto number = text ? ParseFloat(*text) : input.AsNumber();
  if (number && std::isfinite(*number)) {
    return MakeInteger(fmt::format("{:.0f}", std::trunc(*number)));
  }
  const Value* fallback = args.Find(0, "default");
  return fallback != nullptr ? *fallback : Value(int64_t{0});
}

Value ToFloat(Context&, const Value& input, const Args& args) {
  RefuseUndefined(input);
  const std::string* text = input.AsString();
  if (const auto number = text ? ParseFloat(*text) : input.AsNumber()) return *number;
  const Value* fallback = args.Find(0, "default");
  return fallback != nullptr ? *fallback : Value(0.0);
}

// Python's round(): to even where two results are equally near.
Value RoundInteger(Context& c, const Value& value, int64_t precision) {
  if (precision >= 0) return Arithmetic(c.budget, "*", value, int64_t{1});  // of a bool: an int
  if (precision < -30) return int64_t{0};
  const auto math = [&](std::string_view op, const Value& a, const Value& b) {
    return Arithmetic(c.budget, op, a, b);
  };
  const Value unit = math("**", int64_t{10}, -precision);
  const Value rest = math("%", value, unit), down = math("-", value, rest);
  const Value twice = math("*", rest, int64_t{2});
  const bool tie = Equal(c.budget, twice, unit);
  const bool odd = math("%", math("//", down, unit), int64_t{2}).Truth();
  return (tie ? odd : Less(c.budget, unit, twice)) ? math("+", down, unit) : down;
}

double RoundFloat(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 330) return value;
  if (precision < -330) return std::copysign(0.0, value);
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / unit) * unit;
  }
  // The nearest decimal text is exact, which a product with a power of ten is not.
  return std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(precision)).c_str(), nullptr);
}

Value Round(Context& c, const Value& input, const Args& args) {
  const int64_t precision = args.Int(0, "precision", 0);
  const Value* given = args.Find(1, "method");
  const std::string method = given == nullptr ? "common" : Str(c.budget, *given);
  const auto number = input.AsNumber();
  if (!number) Raise("round: '{}' is not a number", input.TypeName());
  if (method == "common") {
    if (input.IsInteger()) return RoundInteger(c, input, precision);
    return RoundFloat(*number, precision);
  }
  if (method != "ceil" && method != "floor") Raise("round: method must be common, ceil or floor");
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = *number * unit;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit;
}

Value Absolute(Context& c, const Value& input, const Args&) {
  const auto number = input.AsNumber();
  if (!number) Raise("abs: '{}' is not a number", input.TypeName());
  if (!input.IsInteger()) return std::fabs(*number);
  return Arithmetic(c.budget, "*", input, int64_t{*number < 0 ? -1 : 1});
}

}  // namespace

void AddNumberFilters(Table& filters) {
  filters.insert({{"int", ToInt}, {"float", ToFloat}, {"round", Round}, {"abs", Absolute}});
}

}  // namespace nibble::jinja
