// SPDX-License-Identifier: Apache-2.0
// The tests: {{ value is name }}.
#include "text/jinja_builtins.h"
#include "text/jinja_math.h"

namespace nibble::jinja {
namespace {

using Test = bool (*)(const Value& value);

bool IsSequence(const Value& value) {
  const List* list = value.AsList();
  return value.AsString() != nullptr || value.AsDict() != nullptr || value.IsUndefined() ||
         (list != nullptr && list->HasIndex());
}

// Undefined, a loop and a joiner can be called as well, if only to raise.
bool IsCallable(const Value& value) {
  const Namespace* state = value.AsNamespace();
  return value.AsCallable() != nullptr || value.IsUndefined() || value.AsLoop() != nullptr ||
         (state != nullptr && state->kind == StateKind::kJoiner);
}

const std::map<std::string_view, Test>& Tests() {
  static const std::map<std::string_view, Test> table = {
      {"defined", [](const Value& v) { return !v.IsUndefined(); }},
      {"undefined", [](const Value& v) { return v.IsUndefined(); }},
      {"none", [](const Value& v) { return v.IsNone(); }},
      {"string", [](const Value& v) { return v.AsString() != nullptr; }},
      {"mapping", [](const Value& v) { return v.AsDict() != nullptr; }},
      {"sequence", IsSequence},
      {"iterable", [](const Value& v) { return IsSequence(v) || v.AsList() != nullptr; }},
      {"number", [](const Value& v) { return v.AsNumber().has_value(); }},
      {"integer", [](const Value& v) { return v.IsInteger() && v.AsBool() == nullptr; }},
      {"float", [](const Value& v) { return v.AsDouble() != nullptr; }},
      {"boolean", [](const Value& v) { return v.AsBool() != nullptr; }},
      {"true", [](const Value& v) { return v.AsBool() != nullptr && *v.AsBool(); }},
      {"false", [](const Value& v) { return v.AsBool() != nullptr && !*v.AsBool(); }},
      {"callable", IsCallable},
      {"escaped", [](const Value& v) { return v.IsMarkup(); }},
  };
  return table;
}

// Python's `is`. Equal numbers and texts of one type are taken to be one object.
bool IsSame(Budget& budget, const Value& a, const Value& b) {
  if (a.AsList() != nullptr || a.AsDict() != nullptr) {
    return a.AsList() == b.AsList() && a.AsDict() == b.AsDict();
  }
  return std::string_view(a.TypeName()) == b.TypeName() && Equal(budget, a, b);
}

using TestWithArguments = bool (*)(Context& c, const Value& value, const Args& args);

bool Remainder(Context& c, const Value& value, const Value& by, int64_t rest) {
  return Equal(c.budget, Arithmetic(c.budget, "%", value, by), rest);
}

template <auto method>
bool IsCase(Context& c, const Value& value, const Args& args) {
  return StringMethods().at(method())(c, Str(c.budget, value), args).Truth();
}

const std::map<std::string_view, TestWithArguments>& TestsWithArguments() {
  static const std::map<std::string_view, TestWithArguments> table = {
      {"odd",
       [](Context& c, const Value& v, const Args&) { return Remainder(c, v, int64_t{2}, 1); }},
      {"even",
       [](Context& c, const Value& v, const Args&) { return Remainder(c, v, int64_t{2}, 0); }},
      {"divisibleby", [](Context& c, const Value& v,
                         const Args& args) { return Remainder(c, v, args.Need(0, "num"), 0); }},
      {"sameas", [](Context& c, const Value& v,
                    const Args& args) { return IsSame(c.budget, v, args.Need(0, "other")); }},
      {"upper", IsCase<[] { return "isupper"; }>},
      {"lower", IsCase<[] { return "islower"; }>},
      {"filter",
       [](Context& c, const Value& v, const Args&) { return HasFilter(Str(c.budget, v)); }},
      {"test", [](Context& c, const Value& v, const Args&) { return HasTest(Str(c.budget, v)); }},
  };
  return table;
}

// x is op(y), under the names jinja2 gives the operators.
std::string_view OperatorOf(std::string_view test) {
  static const std::map<std::string_view, std::string_view> table = {
      {"eq", "=="}, {"equalto", "=="}, {"==", "=="},      {"ne", "!="},
      {"!=", "!="}, {"lt", "<"},       {"lessthan", "<"}, {"<", "<"},
      {"le", "<="}, {"<=", "<="},      {"gt", ">"},       {"greaterthan", ">"},
      {">", ">"},   {"ge", ">="},      {">=", ">="},      {"in", "in"}};
  const auto it = table.find(test);
  return it == table.end() ? std::string_view() : it->second;
}

}  // namespace

bool ApplyTest(Context& c, const std::string& name, const Value& input, const Args& args) {
  c.budget.Charge(1);
  if (const auto op = OperatorOf(name); !op.empty()) {
    return Compare(c.budget, op, input, args.Need(0, "other"));
  }
  const auto more = TestsWithArguments().find(name);
  if (more != TestsWithArguments().end()) {
    ChargeText(c.budget, input);
    return more->second(c, input, args);
  }
  const auto test = Tests().find(name);
  if (test == Tests().end()) Raise("no test named '{}'", name);
  return test->second(input);
}

bool HasTest(std::string_view name) {
  return !OperatorOf(name).empty() || Tests().contains(name) || TestsWithArguments().contains(name);
}

}  // namespace nibble::jinja
