// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

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

void QuotePython(Text& out, const std::string& text) {
  out.budget().Charge(text.size() / kCharsPerStep);
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  out.Add({&quote, 1});
  for (const std::string_view c : Chars(text)) {
    const int32_t code = CodePoint(c);
    if (code == '\n') {
      out.Add("\\n");
    } else if (code == '\r') {
      out.Add("\\r");
    } else if (code == '\t') {
      out.Add("\\t");
    } else if (code == '\\' || code == quote) {
      out.Add("\\");
      out.Add(c);
    } else if (IsPrintable(code)) {
      out.Add(c);
    } else if (out.budget().Charge(1); code < 0x100) {
      out.Add(fmt::format("\\x{:02x}", code));
    } else {
      out.Add(code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code));
    }
  }
  out.Add({&quote, 1});
}

void QuoteJson(Text& out, const std::string& text, bool ensure_ascii) {
  static constexpr std::string_view kShort = "\"\"\\\\\bb\ff\nn\rr\tt";  // char, letter pairs
  out.budget().Charge(text.size() / kCharsPerStep);
  out.Add("\"");
  for (const std::string_view c : Chars(text)) {
    const int32_t code = CodePoint(c);
    size_t i = 0;
    while (i < kShort.size() && kShort[i] != code) i += 2;
    if (i < kShort.size()) {
      out.Add("\\");
      out.Add(kShort.substr(i + 1, 1));
    } else if (code >= 0x20 && (code < 0x7f || !ensure_ascii)) {
      out.Add(c);
    } else if (out.budget().Charge(1); code < 0x10000) {
      out.Add(fmt::format("\\u{:04x}", code));
    } else {
      const int32_t rest = code - 0x10000;
      out.Add(fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff)));
    }
  }
  out.Add("\"");
}

void Write(Text& out, const Value& value, bool quote) {
  out.budget().Charge(1);
  const auto items = [&](const auto& list, std::string_view open, std::string_view close,
                         auto&& one) {
    out.Add(open);
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) out.Add(", ");
      one(list[i]);
    }
    out.Add(close);
  };
  if (const std::string* text = value.AsString()) {
    if (quote) return QuotePython(out, *text);
    out.Add(*text);
  } else if (const bool* b = value.AsBool()) {
    out.Add(*b ? "True" : "False");
  } else if (const auto integer = value.AsInt()) {
    out.Add(fmt::format("{}", *integer));
  } else if (const double* number = value.AsDouble()) {
    out.Add(FloatText(*number));
  } else if (value.IsNone()) {
    out.Add("None");
  } else if (const List* list = value.AsList(); list && list->kind != ListKind::kGenerator) {
    const bool tuple = list->kind == ListKind::kTuple;
    const std::string_view close = !tuple ? "]" : list->items.size() == 1 ? ",)" : ")";
    items(list->items, tuple ? "(" : "[", close, [&](const Value& v) { Write(out, v, true); });
  } else if (const Dict* dict = value.AsDict()) {
    items(dict->items, "{", "}", [&](const auto& entry) {
      QuotePython(out, entry.first);
      out.Add(": ");
      Write(out, entry.second, true);
    });
  } else if (!value.IsUndefined() || quote) {
    out.Add(value.IsUndefined() ? "Undefined" : fmt::format("<{}>", value.TypeName()));
  }
}

void WriteJson(Text& out, const Value& value, const JsonStyle& style, const std::string& newline) {
  out.budget().Charge(1);
  const std::string inner = style.indent ? newline + *style.indent : "";
  const auto items = [&](const auto& list, std::string_view open, std::string_view close,
                         auto&& one) {
    out.Add(open);
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) out.Add(style.item_separator);
      out.Add(inner);
      one(list[i]);
    }
    if (!list.empty() && style.indent) out.Add(newline);
    out.Add(close);
  };
  if (const std::string* text = value.AsString()) {
    QuoteJson(out, *text, style.ensure_ascii);
  } else if (const bool* b = value.AsBool()) {
    out.Add(*b ? "true" : "false");
  } else if (value.IsNone()) {
    out.Add("null");
  } else if (const double* number = value.AsDouble()) {
    const std::string text_form = FloatText(*number);
    out.Add(std::isfinite(*number) ? text_form
            : std::isnan(*number)  ? "NaN"
            : *number < 0          ? "-Infinity"
                                   : "Infinity");
  } else if (value.AsInt()) {
    Write(out, value, false);
  } else if (const List* list = value.AsList(); list && list->kind != ListKind::kGenerator) {
    items(list->items, "[", "]", [&](const Value& v) { WriteJson(out, v, style, inner); });
  } else if (const Dict* dict = value.AsDict()) {
    std::vector<const std::pair<std::string, Value>*> entries;
    for (const auto& entry : dict->items) entries.push_back(&entry);
    if (style.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* x, const auto* y) { return x->first < y->first; });
    }
    items(entries, "{", "}", [&](const auto* entry) {
      QuoteJson(out, entry->first, style.ensure_ascii);
      out.Add(style.key_separator);
      WriteJson(out, entry->second, style, inner);
    });
  } else {
    Raise("a value of type {} cannot be written as JSON", value.TypeName());
  }
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
  const auto i = AsInt();
  return i ? std::optional(static_cast<double>(*i)) : std::nullopt;
}

bool Value::Truth() const {
  if (IsUndefined() || IsNone()) return false;
  if (const auto number = AsNumber()) return *number != 0;
  if (const std::string* text = AsString()) return !text->empty();
  if (const List* list = AsList()) {
    return list->kind == ListKind::kGenerator || !list->items.empty();
  }
  if (const Dict* dict = AsDict()) return !dict->items.empty();
  return true;
}

const char* Value::TypeName() const {
  static constexpr const char* kNames[] = {"Undefined", "NoneType", "bool",    "int",
                                           "float",     "str",      "list",    "dict",
                                           "Namespace", "loop",     "function"};
  if (const List* list = AsList()) {
    if (list->kind == ListKind::kTuple) return "tuple";
    if (list->kind == ListKind::kGenerator) return "generator";
  }
  return kNames[data_.index()];
}

int Value::Depth() const {
  if (const List* list = AsList()) return list->depth;
  if (const Dict* dict = AsDict()) return dict->depth;
  if (const Callable* callable = AsCallable()) return callable->self.Depth();
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

Value MakeDict(Budget& budget, DictItems items) {
  budget.Charge(items.size());
  int depth = 1;
  for (const auto& [key, value] : items) depth = DepthOf(value, depth);
  CheckDepth(depth);
  return std::make_shared<const Dict>(Dict{std::move(items), depth});
}

Value FromJson(const Json& json) {
  static constexpr auto convert = [](const auto& self, const Json& node, int depth) -> Value {
    CheckDepth(depth);
    Budget free(SIZE_MAX);  // the caller's own data, bounded where it came in
    if (node.is_null()) return Value::None();
    if (node.is_boolean()) return node.get<bool>();
    if (node.is_number_float()) return node.get<double>();
    if (node.is_string()) return node.get<std::string>();
    if (node.is_number_integer()) return JsonAs<int64_t>(node, "chat template input");
    if (node.is_array()) {
      std::vector<Value> items;
      for (const Json& item : node) items.push_back(self(self, item, depth + 1));
      return MakeList(free, std::move(items));
    }
    if (!node.is_object()) Raise("chat template input holds binary JSON");
    DictItems items;
    for (const auto& [key, item] : node.items()) {
      items.emplace_back(key, self(self, item, depth + 1));
    }
    return MakeDict(free, std::move(items));
  };
  return convert(convert, json, 0);
}

bool Equal(Budget& budget, const Value& a, const Value& b) {
  budget.Charge(1);
  if (const auto x = a.AsInt(), y = b.AsInt(); x && y) return *x == *y;
  if (const auto x = a.AsNumber(), y = b.AsNumber(); x && y) return *x == *y;
  if (const std::string* x = a.AsString(), *y = b.AsString(); x && y) {
    if (x->size() != y->size()) return false;
    budget.Charge(x->size() / kBytesPerStep);
    return *x == *y;
  }
  if (const List* x = a.AsList(), *y = b.AsList(); x && y) {
    return x == y || (x->kind == y->kind && x->kind != ListKind::kGenerator &&
                      std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(),
                                 [&](const Value& left, const Value& right) {
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
  if (const auto x = a.AsInt(), y = b.AsInt(); x && y) return *x < *y;
  if (const auto x = a.AsNumber(), y = b.AsNumber(); x && y) return *x < *y;
  if (const std::string* x = a.AsString(), *y = b.AsString(); x && y) {
    budget.Charge(std::min(x->size(), y->size()) / kBytesPerStep);
    return *x < *y;  // UTF-8 sorts as its code points do
  }
  if (const List* x = a.AsList(), *y = b.AsList(); x && y && x->kind == y->kind) {
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
  if (const Dict* dict = haystack.AsDict()) {
    const std::string* key = needle.AsString();
    return key != nullptr && FindKey(budget, dict->items, *key) != nullptr;
  }
  if (const List* list = haystack.AsList()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& item) { return Equal(budget, item, needle); });
  }
  if (haystack.IsUndefined()) return false;
  Raise("argument of type '{}' is not iterable", haystack.TypeName());
}

std::string Str(Budget& budget, const Value& value) {
  Text out(budget);
  Write(out, value, false);
  return out.Take();
}

std::string ToJson(Budget& budget, const Value& value, const JsonStyle& style) {
  Text out(budget);
  WriteJson(out, value, style, "\n");
  return out.Take();
}

}  // namespace nibble::jinja
