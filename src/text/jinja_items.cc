// SPDX-License-Identifier: Apache-2.0
// Items of values, and walks over them.
#include <algorithm>

#include "text/jinja_markup.h"
#include "text/jinja_math.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

// The items of a generator that no walk has taken yet.
std::shared_ptr<const List> RestOf(Context& c, const std::shared_ptr<const List>& generator,
                                   std::string* failure) {
  const size_t from = std::exchange(generator->walked, generator->items.size());
  if (failure != nullptr) {
    *failure = generator->failure;
  } else if (!generator->failure.empty()) {
    Raise("{}", generator->failure);
  }
  if (from == 0) return generator;
  const auto first = generator->items.begin() + static_cast<ptrdiff_t>(from);
  return MakeList(c.budget, std::vector<Value>(first, generator->items.end())).ListPointer();
}

}  // namespace

Value GetItem(Context& c, const Value& object, const Value& key) {
  if (const std::string* name = key.AsString()) {
    const Dict* dict = object.AsDict();
    const Value* value = dict == nullptr ? nullptr : FindKey(c.budget, dict->items, key);
    return value != nullptr ? *value : GetAttr(c, object, *name);
  }
  if (const Undefined* missing = object.AsUndefined()) Raise("{}", missing->Message());
  if (const Dict* dict = object.AsDict()) {
    const Value* value = FindKey(c.budget, dict->items, key);
    return value != nullptr ? *value : Value::Missing("a dictionary has no such key");
  }
  const auto number = IndexOf(key);
  if (const List* list = object.AsList(); number && list && list->HasIndex()) {
    const int64_t size = static_cast<int64_t>(list->items.size());
    const int64_t index = *number < 0 ? std::max(*number, -size - 1) + size : *number;
    if (index >= 0 && index < size) return list->items[static_cast<size_t>(index)];
  } else if (const std::string* text = object.AsString(); number && text) {
    c.budget.Charge(text->size() / kCharsPerStep);
    const auto chars = Chars(*text);
    const int64_t size = static_cast<int64_t>(chars.size());
    const int64_t index = *number < 0 ? std::max(*number, -size - 1) + size : *number;
    if (index >= 0 && index < size) {
      return MarkupAs(c.budget, object, std::string(chars[static_cast<size_t>(index)]));
    }
  }
  return Value::Missing(fmt::format("{} has no such element", object.TypeName()));
}

std::shared_ptr<const List> Iterate(Context& c, const Value& value, std::string* failure) {
  if (auto list = value.ListPointer()) {
    c.budget.Charge(list->items.size());
    return list->kind == ListKind::kGenerator ? RestOf(c, list, failure) : list;
  }
  std::vector<Value> items;
  if (const std::string* text = value.AsString()) {
    const auto chars = Chars(*text);
    c.budget.Charge(chars.size());  // before the items are made
    for (const std::string_view one : chars) items.emplace_back(std::string(one));
  } else if (const Dict* dict = value.AsDict()) {
    for (const auto& [key, unused] : dict->items) {
      ChargeText(c.budget, key);
      items.push_back(key);
    }
  } else if (!value.IsUndefined()) {
    Raise("'{}' object is not iterable", value.TypeName());
  }
  return MakeList(c.budget, std::move(items)).ListPointer();
}

}  // namespace nibble::jinja
