// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_math.h"

#include <algorithm>
#include <cmath>

#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

Value Repeat(Budget& budget, const Value& value, int64_t count) {
  const size_t times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (const std::string* text = value.AsString()) {
    if (text->empty() || times == 0) return std::string();
    if (times > kMaxTextBytes / text->size()) Raise("text longer than {} bytes", kMaxTextBytes);
    std::string repeated;
    for (size_t i = 0; i < times; ++i) repeated += *text;
    return MakeString(budget, std::move(repeated));
  }
  const List* list = value.AsList();
  std::vector<Value> items;
  for (size_t i = 0; i < times && !list->items.empty(); ++i) {
    budget.Charge(list->items.size());
    items.insert(items.end(), list->items.begin(), list->items.end());
  }
  return MakeList(budget, std::move(items), list->kind);
}

Value Power(int64_t base, int64_t exponent) {
  if (exponent < 0) return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  int64_t result = 1;
  while (true) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) break;
    exponent >>= 1;
    if (exponent == 0) return result;
    if (__builtin_mul_overflow(base, base, &base)) break;
  }
  Raise("integer overflow in '**'");
}

Value IntegerMath(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
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
    if (op == "//") overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
  } else {  // floor division, and the remainder with the sign of b
    const bool rounds = a % b != 0 && (a < 0) != (b < 0);
    result = op == "//" ? a / b - rounds : a % b + (rounds ? b : 0);
  }
  if (overflow) Raise("integer overflow in '{}'", op);
  return result;
}

Value FloatMath(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  if (b == 0) Raise("division by zero");
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

}  // namespace

Value Arithmetic(Budget& budget, std::string_view op, const Value& a, const Value& b) {
  for (const Value* operand : {&a, &b}) {
    if (const Undefined* missing = operand->AsUndefined()) Raise("{}", missing->Message());
  }
  const auto x = a.AsInt(), y = b.AsInt();
  if (x && y) return IntegerMath(op, *x, *y);
  if (a.AsNumber() && b.AsNumber()) return FloatMath(op, *a.AsNumber(), *b.AsNumber());
  if (op == "+" && a.AsString() != nullptr && b.AsString() != nullptr) {
    Text out(budget);
    out.Add(*a.AsString());
    out.Add(*b.AsString());
    return out.Take();
  }
  const List *left = a.AsList(), *right = b.AsList();
  if (op == "+" && left && right && left->kind == right->kind &&
      left->kind != ListKind::kGenerator) {
    budget.Charge(left->items.size() + right->items.size());
    std::vector<Value> items = left->items;
    items.insert(items.end(), right->items.begin(), right->items.end());
    return MakeList(budget, std::move(items), left->kind);
  }
  const auto repeats = [](const Value& v) {
    return v.AsString() != nullptr ||
           (v.AsList() != nullptr && v.AsList()->kind != ListKind::kGenerator);
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

Value Slice(Context& c, const Value& object, const Value (&bounds)[3]) {
  if (const Undefined* missing = object.AsUndefined()) Raise("{}", missing->Message());
  const bool is_list = object.AsList() && object.AsList()->kind != ListKind::kGenerator;
  if (!is_list && object.AsString() == nullptr) Raise("'{}' cannot be sliced", object.TypeName());
  const std::string* const text = object.AsString();
  if (text != nullptr) c.budget.Charge(text->size() / kCharsPerStep);
  const auto list = is_list ? Iterate(c, object) : nullptr;
  const auto chars = Chars(is_list ? std::string_view() : *text);
  const auto size = static_cast<int64_t>(is_list ? list->items.size() : chars.size());
  const auto bound = [&](size_t i, int64_t fallback) {
    if (bounds[i].IsNone()) return fallback;
    const auto number = bounds[i].AsInt();
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
  return out.Take();
}

}  // namespace nibble::jinja
