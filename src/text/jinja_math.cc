// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_math.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "text/jinja_format.h"
#include "text/jinja_markup.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

Value Repeat(Budget& budget, const Value& value, int64_t count) {
  const size_t times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (const std::string* text = value.AsString()) {
    if (text->empty() || times == 0) return MarkupAs(budget, value, std::string());
    if (times > kMaxTextBytes / text->size()) Raise("text longer than {} bytes", kMaxTextBytes);
    std::string repeated;
    for (size_t i = 0; i < times; ++i) repeated += *text;
    return MarkupAs(budget, value, MakeString(budget, std::move(repeated)));
  }
  const List* list = value.AsList();
  std::vector<Value> items;
  for (size_t i = 0; i < times && !list->items.empty(); ++i) {
    budget.Charge(list->items.size());
    items.insert(items.end(), list->items.begin(), list->items.end());
  }
  return MakeList(budget, std::move(items), list->kind);
}

// Wide enough for all integers that templates were seen to compute with.
__extension__ using Wide = __int128;

std::optional<Wide> AsWide(const Value& value) {
  if (const auto integer = value.AsInt()) return *integer;
  const BigInt* big = value.AsBigInt();
  if (big == nullptr) return std::nullopt;
  Wide number = 0;
  const bool negative = big->digits[0] == '-';
  for (const char digit : std::string_view(big->digits).substr(negative)) {
    const int one = negative ? '0' - digit : digit - '0';
    if (__builtin_mul_overflow(number, Wide{10}, &number) ||
        __builtin_add_overflow(number, Wide{one}, &number)) {
      return std::nullopt;
    }
  }
  return number;
}

Value FromWide(Wide number) {
  const auto narrow = static_cast<int64_t>(number);
  return narrow == number ? Value(narrow) : MakeInteger(fmt::format("{}", number));
}

Value Power(Wide base, Wide exponent) {
  if (exponent < 0 && base == 0) Raise("division by zero");
  if (exponent < 0) return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  Wide result = 1;
  while (true) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) break;
    exponent >>= 1;
    if (exponent == 0) return FromWide(result);
    if (__builtin_mul_overflow(base, base, &base)) break;
  }
  Raise("integer overflow in '**'");
}

Value IntegerMath(std::string_view op, Wide a, Wide b) {
  Wide result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    return Power(a, b);
  } else if (b == 0) {
    Raise("division by zero");
  } else if (op == "/") {
    return static_cast<double>(a) / static_cast<double>(b);
  } else if (b == -1) {
    if (op == "//") overflow = __builtin_sub_overflow(Wide{0}, a, &result);
  } else {  // floor division, and the remainder with the sign of b
    const bool rounds = a % b != 0 && (a < 0) != (b < 0);
    result = op == "//" ? a / b - rounds : a % b + (rounds ? b : 0);
  }
  if (overflow) Raise("integer overflow in '{}'", op);
  return FromWide(result);
}

Value FloatMath(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (b == 0 && op != "**") Raise("division by zero");
  if (op == "**") {
    if (a == 0 && b < 0) Raise("division by zero");
    if (a < 0 && b != std::floor(b)) Raise("complex numbers are not supported");
    return std::pow(a, b);
  }
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value SliceRange(Context& c, const List& range, const std::array<int64_t, 3>& slice) {
  const auto at = [&](int64_t i) { return Wide{range.start} + Wide{range.step} * i; };
  const Wide start = at(slice[0]), stop = at(slice[1]), step = Wide{range.step} * slice[2];
  for (const Wide number : {start, stop, step}) {
    if (number != static_cast<int64_t>(number)) Raise("integer overflow in a slice of range()");
  }
  return MakeRange(c.budget, static_cast<int64_t>(start), static_cast<int64_t>(stop),
                   static_cast<int64_t>(step));
}

}  // namespace

Value Arithmetic(Budget& budget, std::string_view op, const Value& a, const Value& b) {
  for (const Value* operand : {&a, &b}) {
    if (const Undefined* missing = operand->AsUndefined()) Raise("{}", missing->Message());
  }
  if (a.IsInteger() && b.IsInteger()) {
    const auto x = AsWide(a), y = AsWide(b);
    if (!x || !y) Raise("integer overflow in '{}': more than 128 bits", op);
    return IntegerMath(op, *x, *y);
  }
  if (a.AsNumber() && b.AsNumber()) return FloatMath(op, *a.AsNumber(), *b.AsNumber());
  if (op == "%" && a.AsString() != nullptr) return FormatPercent(budget, a, b);
  if (op == "+" && a.AsString() != nullptr && b.AsString() != nullptr) {
    const Value& markup = a.IsMarkup() ? a : b;
    Text out(budget);
    for (const Value* text : {&a, &b}) {
      out.Add(markup.IsMarkup() ? EscapeHtml(budget, *text) : *text->AsString());
    }
    return MarkupAs(budget, markup, out.Take());
  }
  const List *left = a.AsList(), *right = b.AsList();
  if (op == "+" && left && right && left->kind == right->kind &&
      (left->kind == ListKind::kList || left->IsTuple())) {
    budget.Charge(left->items.size() + right->items.size());
    std::vector<Value> items = left->items;
    items.insert(items.end(), right->items.begin(), right->items.end());
    return MakeList(budget, std::move(items), left->kind);
  }
  const auto x = a.AsInt(), y = b.AsInt();
  const auto repeats = [](const Value& v) {
    const List* list = v.AsList();
    return v.AsString() != nullptr ||
           (list != nullptr && (list->kind == ListKind::kList || list->IsTuple()));
  };
  if (op == "*" && repeats(a) && y) return Repeat(budget, a, *y);
  if (op == "*" && repeats(b) && x) return Repeat(budget, b, *x);
  Raise("unsupported operands for '{}': {} and {}", op, a.TypeName(), b.TypeName());
}

bool Compare(Budget& budget, std::string_view op, const Value& a, const Value& b) {
  if (op == "==") return Equal(budget, a, b);
  if (op == "!=") return !Equal(budget, a, b);
  if (op == "<") return Less(budget, a, b);
  if (op == ">") return Less(budget, b, a);
  if (op == "<=") return Less(budget, a, b) || Equal(budget, a, b);
  if (op == ">=") return Less(budget, b, a) || Equal(budget, a, b);
  return Contains(budget, b, a) == (op == "in");
}

// A larger integer becomes the largest of 64 bits: no text or list is as long as that.
std::optional<int64_t> IndexOf(const Value& value) {
  const BigInt* big = value.AsBigInt();
  if (big == nullptr) return value.AsInt();
  return big->digits[0] == '-' ? INT64_MIN : INT64_MAX;
}

Value Slice(Context& c, const Value& object, const Value (&bounds)[3]) {
  if (const Undefined* missing = object.AsUndefined()) Raise("{}", missing->Message());
  const bool is_list = object.AsList() != nullptr && object.AsList()->HasIndex();
  if (!is_list && object.AsString() == nullptr) Raise("'{}' cannot be sliced", object.TypeName());
  const std::string* const text = object.AsString();
  if (text != nullptr) c.budget.Charge(text->size() / kCharsPerStep);
  const auto list = is_list ? Iterate(c, object) : nullptr;
  const auto chars = Chars(is_list ? std::string_view() : *text);
  const auto size = static_cast<int64_t>(is_list ? list->items.size() : chars.size());
  const auto bound = [&](size_t i, int64_t fallback) {
    if (bounds[i].IsNone()) return fallback;
    const auto number = IndexOf(bounds[i]);
    if (!number) Raise("slice bounds must be integers");
    return *number;
  };
  const int64_t step = bound(2, 1);
  if (step == 0) Raise("slice step must not be zero");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto clamp = [&](int64_t at) {
    return std::clamp(at < 0 ? std::max(at, -size - 1) + size : at, low, high);
  };
  const int64_t start = bounds[0].IsNone() ? (step > 0 ? low : high) : clamp(bound(0, 0));
  const int64_t stop = bounds[1].IsNone() ? (step > 0 ? high : low) : clamp(bound(1, 0));
  if (is_list && list->kind == ListKind::kRange) return SliceRange(c, *list, {start, stop, step});
  std::vector<Value> items;
  Text out(c.budget);
  int64_t at = start;
  while (step > 0 ? at < stop : at > stop) {
    if (is_list) {
      items.push_back(list->items[static_cast<size_t>(at)]);
    } else {
      out.Add(chars[static_cast<size_t>(at)]);
    }
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  if (is_list) return MakeList(c.budget, std::move(items), list->kind);
  return MarkupAs(c.budget, object, out.Take());
}

}  // namespace nibble::jinja
