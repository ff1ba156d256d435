// SPDX-License-Identifier: Apache-2.0
// Equal, Less and Contains of jinja_value.h.
#include <algorithm>

#include "base/utf8.h"
#include "text/jinja_value.h"

namespace nibble::jinja {
namespace {

// Compares integers: without leading zeros, the one with more digits is the larger in size.
int CompareIntegers(const Value& a, const Value& b) {
  const auto x = a.AsInt(), y = b.AsInt();
  if (x && y) return (*x > *y) - (*x < *y);
  const auto text = [](const Value& v) {
    return v.AsBigInt() != nullptr ? v.AsBigInt()->digits : fmt::format("{}", *v.AsInt());
  };
  const std::string s = text(a), t = text(b);
  const bool negative = s[0] == '-';
  if (negative != (t[0] == '-')) return negative ? -1 : 1;
  const int size = s.size() != t.size() ? (s.size() < t.size() ? -1 : 1) : s.compare(t);
  return negative ? -size : size;
}

}  // namespace

bool Equal(Budget& budget, const Value& a, const Value& b) {
  budget.Charge(1);
  if (a.IsInteger() && b.IsInteger()) return CompareIntegers(a, b) == 0;
  if (const auto x = a.AsNumber(), y = b.AsNumber(); x && y) return *x == *y;
  if (const std::string* x = a.AsString(), *y = b.AsString(); x && y) {
    if (x->size() != y->size()) return false;
    budget.Charge(x->size() / kBytesPerStep);
    return *x == *y;
  }
  if (const List* x = a.AsList(), *y = b.AsList(); x && y) {
    const bool comparable = x->HasIndex() && (x->kind == y->kind || (x->IsTuple() && y->IsTuple()));
    return x == y ||
           (comparable && std::equal(x->items.begin(), x->items.end(), y->items.begin(),
                                     y->items.end(), [&](const Value& left, const Value& right) {
                                       return Equal(budget, left, right);
                                     }));
  }
  if (const Dict* x = a.AsDict(), *y = b.AsDict(); x && y) {
    return x->items.size() == y->items.size() &&
           std::all_of(x->items.begin(), x->items.end(), [&](const auto& entry) {
             const Value* other = FindKey(budget, y->items, entry.first);
             return other != nullptr && Equal(budget, entry.second, *other);
           });
  }
  if (a.AsNamespace() != nullptr) return a.AsNamespace() == b.AsNamespace();
  return (a.IsUndefined() && b.IsUndefined()) || (a.IsNone() && b.IsNone());
}

bool Less(Budget& budget, const Value& a, const Value& b) {
  budget.Charge(1);
  if (a.IsInteger() && b.IsInteger()) return CompareIntegers(a, b) < 0;
  if (const auto x = a.AsNumber(), y = b.AsNumber(); x && y) return *x < *y;
  if (const std::string* x = a.AsString(), *y = b.AsString(); x && y) {
    budget.Charge(std::min(x->size(), y->size()) / kBytesPerStep);
    return *x < *y;  // UTF-8 sorts as its code points do
  }
  if (const List* x = a.AsList(), *y = b.AsList();
      x && y && x->kind != ListKind::kRange && x->HasIndex() &&
      (x->kind == y->kind || (x->IsTuple() && y->IsTuple()))) {
    for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      if (!Equal(budget, x->items[i], y->items[i])) return Less(budget, x->items[i], y->items[i]);
    }
    return x->items.size() < y->items.size();
  }
  Raise("cannot order {} and {}", a.TypeName(), b.TypeName());
}

bool Contains(Budget& budget, const Value& haystack, const Value& needle) {
  if (const std::string* text = haystack.AsString()) {
    const std::string* part = needle.AsString();
    if (part == nullptr) Raise("'in <string>' needs a string, not {}", needle.TypeName());
    budget.Charge((text->size() + part->size()) / kBytesPerStep);
    return FindText(*text, *part) != std::string::npos;
  }
  if (const Dict* dict = haystack.AsDict()) return FindKey(budget, dict->items, needle) != nullptr;
  if (const List* list = haystack.AsList()) {
    const bool once = list->kind == ListKind::kGenerator;
    for (size_t i = once ? list->walked : 0; i < list->items.size(); ++i) {
      if (once) list->walked = i + 1;
      if (Equal(budget, list->items[i], needle)) return true;
    }
    if (!list->failure.empty()) Raise("{}", list->failure);
    return false;
  }
  if (haystack.IsUndefined()) return false;
  Raise("argument of type '{}' is not iterable", haystack.TypeName());
}

}  // namespace nibble::jinja
