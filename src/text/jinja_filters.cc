// SPDX-License-Identifier: Apache-2.0
// The filters and tests of jinja_builtins.h.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/jinja_math.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

using Test = bool (*)(const Value& value);

// The value at "a.b.0" (or an index) of an item, as attribute= and selectattr() take it.
Value GetPath(Context& c, Value item, const Value& path) {
  if (path.AsString() == nullptr) return GetItem(c, item, path);
  std::string_view rest = *path.AsString();
  while (true) {
    const std::string part(rest.substr(0, rest.find('.')));
    int64_t index = 0;
    const char* const end = part.data() + part.size();
    const auto number = std::from_chars(part.data(), end, index);
    const bool is_index = number.ec == std::errc() && number.ptr == end;
    c.budget.Charge(1 + part.size() / kBytesPerStep);
    item = GetItem(c, item, is_index ? Value(index) : Value(part));
    if (part.size() == rest.size()) return item;
    rest.remove_prefix(part.size() + 1);
  }
}

Value ToJsonFilter(Context& c, const Value& input, const Args& args) {
  JsonStyle style;
  style.ensure_ascii = args.Bool(0, "ensure_ascii", false);
  style.sort_keys = args.Bool(3, "sort_keys", false);
  if (const Value* indent = args.Find(1, "indent"); indent != nullptr && !indent->IsNone()) {
    constexpr int64_t kMaxIndent = 64;
    const std::string* text = indent->AsString();
    style.indent = text != nullptr ? *text
                                   : std::string(static_cast<size_t>(std::clamp<int64_t>(
                                                     args.Int(1, "indent", 0), 0, kMaxIndent)),
                                                 ' ');
    style.item_separator = std::string(",");
  }
  if (const Value* separators = args.Find(2, "separators"); separators && !separators->IsNone()) {
    const List* pair = separators->AsList();
    if (pair == nullptr || pair->items.size() != 2) Raise("tojson: separators must be a pair");
    style.item_separator = Str(c.budget, pair->items[0]);
    style.key_separator = Str(c.budget, pair->items[1]);
  }
  return ToJson(c.budget, input, style);
}

Value Length(Context&, const Value& input, const Args&) {
  if (input.IsUndefined()) return int64_t{0};
  if (const std::string* text = input.AsString()) {
    int64_t chars = 0;
    for (std::string_view rest = *text; !rest.empty(); ++chars) {
      rest.remove_prefix(FirstChar(rest).size());
    }
    return chars;
  }
  const List* list = input.AsList();
  if (list && list->kind != ListKind::kGenerator) return static_cast<int64_t>(list->items.size());
  if (input.AsDict() == nullptr) Raise("object of type '{}' has no length", input.TypeName());
  return static_cast<int64_t>(input.AsDict()->items.size());
}

Value Join(Context& c, const Value& input, const Args& args) {
  const Value* between = args.Find(0, "d");
  const Value* path = args.Find(1, "attribute");
  const std::string separator = between == nullptr ? "" : Str(c.budget, *between);
  Text out(c.budget);
  bool first = true;
  const auto list = Iterate(c, input);
  for (const Value& item : list->items) {
    if (!std::exchange(first, false)) out.Add(separator);
    out.Add(Str(c.budget, path == nullptr ? item : GetPath(c, item, *path)));
  }
  return out.Take();
}

Value Map(Context& c, const Value& input, const Args& args) {
  const Value* path = args.Find(SIZE_MAX, "attribute");
  const Value* fallback = args.Find(SIZE_MAX, "default");
  const Args rest = args.Tail(1);
  std::vector<Value> items;
  const auto list = Iterate(c, input);
  for (const Value& item : list->items) {
    if (path != nullptr) {
      const Value found = GetPath(c, item, *path);
      items.push_back(found.IsUndefined() && fallback != nullptr ? *fallback : found);
    } else {
      items.push_back(ApplyFilter(c, Str(c.budget, args.Need(0, "filter")), item, rest));
    }
  }
  return MakeList(c.budget, std::move(items), ListKind::kGenerator);
}

template <bool keep, bool by_attribute>
Value Select(Context& c, const Value& input, const Args& args) {
  const Args rest = args.Tail(by_attribute ? 2 : 1);
  const Value* test = args.Find(by_attribute ? 1 : 0, "test");
  std::vector<Value> items;
  const auto list = Iterate(c, input);
  for (const Value& item : list->items) {
    const Value value = by_attribute ? GetPath(c, item, args.Need(0, "attribute")) : item;
    const bool accepted =
        test == nullptr ? value.Truth() : ApplyTest(c, Str(c.budget, *test), value, rest);
    if (accepted == keep) items.push_back(item);
  }
  return MakeList(c.budget, std::move(items), ListKind::kGenerator);
}

Value Items(Context& c, const Value& input, const Args& args) {
  if (input.IsUndefined()) return MakeList(c.budget, {}, ListKind::kGenerator);
  if (input.AsDict() == nullptr) Raise("items: '{}' is not a mapping", input.TypeName());
  return GetAttr(c, input, "items").AsCallable()->function(c, input, args);
}

Value Default(Context&, const Value& input, const Args& args) {
  const bool replaces = args.Bool(1, "boolean", false) ? !input.Truth() : input.IsUndefined();
  const Value* fallback = args.Find(0, "default_value");
  if (!replaces) return input;
  return fallback == nullptr ? Value(std::string()) : *fallback;
}

template <bool from_end>
Value Edge(Context& c, const Value& input, const Args&) {
  const auto list = Iterate(c, input);
  if (list->items.empty()) return Value::Missing("an empty sequence has no first or last item");
  return from_end ? list->items.back() : list->items.front();
}

template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  text = Strip(text, Side::kBoth);
  if (text.starts_with('+')) text.remove_prefix(1);
  T number{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

Value ToInt(Context&, const Value& input, const Args& args) {
  if (const auto integer = input.AsInt()) return *integer;
  const std::string* text = input.AsString();
  if (const auto parsed = text ? ParseNumber<int64_t>(*text) : std::nullopt) return *parsed;
  const auto number = text ? ParseNumber<double>(*text) : input.AsNumber();
  if (number && std::fabs(*number) < 9e18) return static_cast<int64_t>(*number);
  const Value* fallback = args.Find(0, "default");
  return fallback != nullptr ? *fallback : Value(int64_t{0});
}

Value Reverse(Context& c, const Value& input, const Args&) {
  const auto list = Iterate(c, input);
  std::vector<Value> items(list->items.rbegin(), list->items.rend());
  if (input.AsString() == nullptr) {
    return MakeList(c.budget, std::move(items), ListKind::kGenerator);
  }
  Text out(c.budget);
  for (const Value& item : items) out.Add(*item.AsString());
  return out.Take();
}

// By key, without regard to case, as in jinja2.
Value DictSort(Context& c, const Value& input, const Args& args) {
  if (!args.positional.empty() || !args.named.empty()) Raise("dictsort: no arguments supported");
  std::vector<std::pair<std::string, Value>> keyed;
  const Value pairs = Items(c, input, {});
  for (const Value& item : pairs.AsList()->items) {
    const Value key = FindStringMethod("lower")(c, item.AsList()->items[0], {});
    keyed.emplace_back(*key.AsString(), item);
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Value> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return MakeList(c.budget, std::move(items));
}

const std::map<std::string_view, Function>& Filters() {
  static const std::map<std::string_view, Function> table = {
      {"trim", FindStringMethod("strip")},
      {"upper", FindStringMethod("upper")},
      {"lower", FindStringMethod("lower")},
      {"capitalize", FindStringMethod("capitalize")},
      {"replace", FindStringMethod("replace")},
      {"tojson", ToJsonFilter},
      {"length", Length},
      {"count", Length},
      {"join", Join},
      {"map", Map},
      {"select", Select<true, false>},
      {"reject", Select<false, false>},
      {"selectattr", Select<true, true>},
      {"rejectattr", Select<false, true>},
      {"items", Items},
      {"default", Default},
      {"d", Default},
      {"first", Edge<false>},
      {"last", Edge<true>},
      {"int", ToInt},
      {"reverse", Reverse},
      {"dictsort", DictSort},
      {"safe", [](Context&, const Value& input, const Args&) { return input; }},
      {"string",
       [](Context& c, const Value& input, const Args&) { return Value(Str(c.budget, input)); }},
      {"list", [](Context& c, const Value& input,
                  const Args&) { return MakeList(c.budget, Iterate(c, input)->items); }},
  };
  return table;
}

bool IsSequence(const Value& value) {
  const List* list = value.AsList();
  return value.AsString() != nullptr || value.AsDict() != nullptr || value.IsUndefined() ||
         (list != nullptr && list->kind != ListKind::kGenerator);
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
      {"integer", [](const Value& v) { return v.AsInt() && v.AsBool() == nullptr; }},
      {"float", [](const Value& v) { return v.AsDouble() != nullptr; }},
      {"boolean", [](const Value& v) { return v.AsBool() != nullptr; }},
      {"true", [](const Value& v) { return v.AsBool() != nullptr && *v.AsBool(); }},
      {"false", [](const Value& v) { return v.AsBool() != nullptr && !*v.AsBool(); }},
      {"callable", [](const Value& v) { return v.AsCallable() != nullptr; }},
  };
  return table;
}

// x is op(y), under the names jinja2 gives the operators.
std::string_view OperatorOf(std::string_view test) {
  static const std::map<std::string_view, std::string_view> table = {
      {"eq", "=="}, {"equalto", "=="}, {"==", "=="},         {"sameas", "=="}, {"ne", "!="},
      {"!=", "!="}, {"lt", "<"},       {"lessthan", "<"},    {"<", "<"},       {"le", "<="},
      {"<=", "<="}, {"gt", ">"},       {"greaterthan", ">"}, {">", ">"},       {"ge", ">="},
      {">=", ">="}, {"in", "in"}};
  const auto it = table.find(test);
  return it == table.end() ? std::string_view() : it->second;
}

}  // namespace

Value ApplyFilter(Context& c, const std::string& name, const Value& input, const Args& args) {
  c.budget.Charge(1);
  ChargeText(c.budget, input);
  const auto filter = Filters().find(name);
  if (filter == Filters().end()) Raise("no filter named '{}'", name);
  return filter->second(c, input, args);
}

bool ApplyTest(Context& c, const std::string& name, const Value& input, const Args& args) {
  c.budget.Charge(1);
  if (const auto op = OperatorOf(name); !op.empty()) {
    return Compare(c.budget, op, input, args.Need(0, "other"));
  }
  if (name == "odd" || name == "even" || name == "divisibleby") {
    const int64_t by = name == "divisibleby" ? args.Int(0, "num", 0) : 2;
    const auto number = input.AsInt();
    if (!number || by == 0) Raise("test '{}' needs integers", name);
    return by == -1 || (*number % by == 0) != (name == "odd");
  }
  const auto test = Tests().find(name);
  if (test == Tests().end()) Raise("no test named '{}'", name);
  return test->second(input);
}

}  // namespace nibble::jinja
