// SPDX-License-Identifier: Apache-2.0
// The table of filters, and those that take any value.
#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

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
  if (const std::string* text = input.AsString()) return CountChars(*text);
  const List* list = input.AsList();
  if (list && list->HasLength()) return static_cast<int64_t>(list->items.size());
  if (input.AsDict() == nullptr) Raise("object of type '{}' has no length", input.TypeName());
  return static_cast<int64_t>(input.AsDict()->items.size());
}

Value Default(Context&, const Value& input, const Args& args) {
  const bool replaces = args.Bool(1, "boolean", false) ? !input.Truth() : input.IsUndefined();
  const Value* fallback = args.Find(0, "default_value");
  if (!replaces) return input;
  return fallback == nullptr ? Value(std::string()) : *fallback;
}

// Methods and attributes alone, where object.name also takes the keys of a dictionary.
Value Attribute(Context& c, const Value& input, const Args& args) {
  const std::string name = Str(c.budget, args.Need(0, "name"));
  const Value found = GetAttr(c, input, name);
  const bool key = input.AsDict() != nullptr && found.AsCallable() == nullptr;
  return key ? Value::Missing(fmt::format("a dictionary has no attribute '{}'", name)) : found;
}

Value ToString(Context& c, const Value& input, const Args&) {
  return input.AsString() != nullptr ? input : Value(Str(c.budget, input));
}

const Table& Filters() {
  static const Table table = [] {
    Table filters = {{"tojson", ToJsonFilter}, {"length", Length}, {"count", Length},
                     {"default", Default},     {"d", Default},     {"attr", Attribute},
                     {"string", ToString}};
    AddSequenceFilters(filters);
    AddTextFilters(filters);
    AddNumberFilters(filters);
    return filters;
  }();
  return table;
}

}  // namespace

Value ApplyFilter(Context& c, const std::string& name, const Value& input, const Args& args) {
  c.budget.Charge(1);
  ChargeText(c.budget, input);
  const auto filter = Filters().find(name);
  if (filter == Filters().end()) Raise("no filter named '{}'", name);
  return filter->second(c, input, args);
}

bool HasFilter(std::string_view name) {
  return Filters().contains(name);
}

}  // namespace nibble::jinja
