// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/json_integers.h"
#include "text/jinja_builtins.h"

namespace nibble::jinja {
namespace {

int DepthOf(const Value& value, int below) {
  return std::max(below, value.Depth() + 1);
}

void CheckDepth(int depth) {
  if (depth > kMaxValueDepth) {
    Raise("values nested deeper than {}, or a namespace or loop in a container", kMaxValueDepth);
  }
}

// Python's hash(): of no list or dictionary, nor of a tuple that holds one.
bool HasHash(const Value& value) {
  if (value.AsDict() != nullptr) return false;
  const List* list = value.AsList();
  if (list == nullptr || !list->IsTuple()) return list == nullptr || list->kind != ListKind::kList;
  return std::all_of(list->items.begin(), list->items.end(), HasHash);
}

DictItems::const_iterator FindText(Budget& budget, const DictItems& items, std::string_view key) {
  budget.Charge(items.size() / 8);
  return std::find_if(items.begin(), items.end(), [&](const auto& item) {
    const std::string* text = item.first.AsString();
    if (text == nullptr || text->size() != key.size()) return false;
    budget.Charge(key.size() / kBytesPerStep);
    return *text == key;
  });
}

DictItems::const_iterator FindItem(Budget& budget, const DictItems& items, const Value& key) {
  if (const std::string* text = key.AsString()) return FindText(budget, items, *text);
  if (!HasHash(key)) Raise("a {} has no hash and is no key", key.TypeName());
  return std::find_if(items.begin(), items.end(),
                      [&](const auto& item) { return Equal(budget, item.first, key); });
}

}  // namespace

Value Value::Missing(std::string message) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(message))};
  return value;
}

std::shared_ptr<const List> Value::ListPointer() const {
  const auto* p = std::get_if<std::shared_ptr<const List>>(&data_);
  return p == nullptr ? nullptr : *p;
}

std::optional<int64_t> Value::AsInt() const {
  if (const bool* b = AsBool()) return *b;
  const auto* i = std::get_if<int64_t>(&data_);
  return i == nullptr ? std::nullopt : std::optional(*i);
}

std::optional<double> Value::AsNumber() const {
  if (const double* d = AsDouble()) return *d;
  if (const BigInt* big = AsBigInt()) return std::strtod(big->digits.c_str(), nullptr);
  const auto i = AsInt();
  return i ? std::optional(static_cast<double>(*i)) : std::nullopt;
}

bool Value::Truth() const {
  if (IsUndefined() || IsNone()) return false;
  if (const auto number = AsNumber()) return *number != 0;
  if (const std::string* text = AsString()) return !text->empty();
  if (const List* list = AsList()) {
    return !list->HasLength() || !list->items.empty();
  }
  if (const Dict* dict = AsDict()) return !dict->items.empty();
  return true;
}

const char* Value::TypeName() const {
  static constexpr const char* kNames[] = {"Undefined", "NoneType", "bool",  "int",       "float",
                                           "str",       "list",     "dict",  "Namespace", "loop",
                                           "function",  "int",      "Markup"};
  static constexpr const char* kLists[] = {"list",      "tuple",     "tuple",       "range",
                                           "generator", "dict_keys", "dict_values", "dict_items"};
  if (const List* list = AsList()) return kLists[static_cast<size_t>(list->kind)];
  return kNames[data_.index()];
}

int Value::Depth() const {
  if (const List* list = AsList()) return list->depth;
  if (const Dict* dict = AsDict()) return dict->depth;
  if (const Callable* callable = AsCallable()) {
    return callable->scope != nullptr ? kMaxValueDepth : callable->self.Depth();
  }
  return AsNamespace() != nullptr || AsLoop() != nullptr ? kMaxValueDepth : 0;
}

void ChargeText(Budget& budget, const Value& value) {
  if (const std::string* text = value.AsString()) budget.Charge(text->size() / kBytesPerStep);
}

Value MakeString(Budget& budget, std::string text) {
  Text checked(budget);
  checked.Add(text);
  return checked.Take();
}

Value MakeList(Budget& budget, std::vector<Value> items, ListKind kind) {
  budget.Charge(items.size());
  int depth = 1;
  for (const Value& item : items) depth = DepthOf(item, depth);
  CheckDepth(depth);
  return std::make_shared<const List>(List{std::move(items), kind, depth});
}

Value MakeGenerator(Budget& budget, std::vector<Value> items, std::string failure) {
  const Value list = MakeList(budget, std::move(items), ListKind::kGenerator);
  if (failure.empty()) return list;
  List failed = *list.AsList();
  failed.failure = std::move(failure);
  return std::make_shared<const List>(std::move(failed));
}

Value MakeDict(Budget& budget, DictItems items) {
  budget.Charge(items.size());
  int depth = 1;
  for (const auto& [key, value] : items) depth = DepthOf(value, DepthOf(key, depth));
  CheckDepth(depth);
  return std::make_shared<const Dict>(Dict{std::move(items), depth});
}

Value MakeRange(Budget& budget, int64_t start, int64_t stop, int64_t step) {
  if (step == 0) Raise("range(): step must not be zero");
  std::vector<Value> items;
  int64_t value = start;
  while (step > 0 ? value < stop : value > stop) {
    if (items.size() == static_cast<size_t>(kMaxRange)) {
      Raise("range() of more than {} numbers", kMaxRange);
    }
    items.emplace_back(value);
    if (__builtin_add_overflow(value, step, &value)) break;
  }
  budget.Charge(items.size());
  return std::make_shared<const List>(
      List{std::move(items), ListKind::kRange, 1, start, stop, step});
}

Value MakeInteger(std::string_view digits) {
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const std::string_view significant =
      digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) {
    Raise("'{}' is not an integer", digits);
  }
  if (significant.size() > kMaxDigits) Raise("an integer of more than {} digits", kMaxDigits);
  std::string text = (negative ? "-" : "") + std::string(significant.empty() ? "0" : significant);
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  if (std::from_chars(text.data(), end, number).ec == std::errc()) return number;
  return std::make_shared<const BigInt>(BigInt{std::move(text)});
}

const Value* FindKey(Budget& budget, const DictItems& items, std::string_view key) {
  const auto it = FindText(budget, items, key);
  return it == items.end() ? nullptr : &it->second;
}

const Value* FindKey(Budget& budget, const DictItems& items, const Value& key) {
  const auto it = FindItem(budget, items, key);
  return it == items.end() ? nullptr : &it->second;
}

void SetKey(Budget& budget, DictItems& items, const Value& key, Value value) {
  const auto it = FindItem(budget, items, key);
  if (it != items.end()) {
    items[static_cast<size_t>(it - items.begin())].second = std::move(value);
  } else {
    ChargeText(budget, key);
    items.emplace_back(key, std::move(value));
  }
}

Value FromJson(const Json& json) {
  static constexpr auto convert = [](const auto& self, const Json& node, int depth) -> Value {
    CheckDepth(depth);
    Budget free(SIZE_MAX);  // the caller's own data, bounded where it came in
    if (node.is_null()) return Value::None();
    if (node.is_boolean()) return node.get<bool>();
    if (node.is_number_float()) return node.get<double>();
    if (node.is_string()) return node.get<std::string>();
    if (node.is_number_integer()) return MakeInteger(node.dump());
    if (const auto digits = BigIntegerOf(node)) return MakeInteger(*digits);
    if (node.is_array()) {
      std::vector<Value> items;
      for (const Json& item : node) items.push_back(self(self, item, depth + 1));
      return MakeList(free, std::move(items));
    }
    if (!node.is_object()) Raise("chat template input holds binary JSON");
    DictItems items;
    for (const auto& [key, item] : node.items()) {
      items.emplace_back(Value(key), self(self, item, depth + 1));
    }
    return MakeDict(free, std::move(items));
  };
  return convert(convert, json, 0);
}

}  // namespace nibble::jinja
