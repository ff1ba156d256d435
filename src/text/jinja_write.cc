// SPDX-License-Identifier: Apache-2.0
// str(), repr() and json.dumps() of jinja_value.h.
#include <algorithm>
#include <cmath>

#include "text/jinja_text.h"
#include "text/jinja_value.h"

namespace nibble::jinja {
namespace {

void QuotePython(Text& out, const std::string& text, bool markup) {
  out.budget().Charge(text.size() / kCharsPerStep);
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  if (markup) out.Add("Markup(");
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
  if (markup) out.Add(")");
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

// The brackets that str() writes around the items of a sequence.
std::pair<std::string_view, std::string_view> Brackets(const List& list) {
  if (list.IsTuple()) return {"(", list.items.size() == 1 ? ",)" : ")"};
  if (list.kind == ListKind::kKeys) return {"dict_keys([", "])"};
  if (list.kind == ListKind::kValues) return {"dict_values([", "])"};
  if (list.kind == ListKind::kItems) return {"dict_items([", "])"};
  return {"[", "]"};
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
  const auto write_entry = [&](const auto& entry) {
    Write(out, entry.first, true);
    out.Add(": ");
    Write(out, entry.second, true);
  };
  if (const std::string* text = value.AsString()) {
    if (quote) return QuotePython(out, *text, value.IsMarkup());
    out.Add(*text);
  } else if (const bool* b = value.AsBool()) {
    out.Add(*b ? "True" : "False");
  } else if (const BigInt* big = value.AsBigInt()) {
    out.Add(big->digits);
  } else if (const auto integer = value.AsInt()) {
    out.Add(fmt::format("{}", *integer));
  } else if (const double* number = value.AsDouble()) {
    out.Add(FloatText(*number));
  } else if (value.IsNone()) {
    out.Add("None");
  } else if (const List* list = value.AsList(); list && list->kind == ListKind::kRange) {
    out.Add(fmt::format("range({}, {}", list->start, list->stop));
    out.Add(list->step == 1 ? ")" : fmt::format(", {})", list->step));
  } else if (list != nullptr && list->kind != ListKind::kGenerator) {
    const auto [open, close] = Brackets(*list);
    items(list->items, open, close, [&](const Value& v) { Write(out, v, true); });
  } else if (const Dict* dict = value.AsDict()) {
    items(dict->items, "{", "}", write_entry);
  } else if (const Loop* loop = value.AsLoop()) {
    out.Add(fmt::format("<LoopContext {}/{}>", loop->index + 1, loop->items->items.size()));
  } else if (const Namespace* vars = value.AsNamespace();
             vars != nullptr && vars->kind == StateKind::kNamespace) {
    items(std::vector(vars->vars.begin(), vars->vars.end()), "<Namespace {", "}>", write_entry);
  } else if (!value.IsUndefined() || quote) {
    out.Add(value.IsUndefined() ? "Undefined" : fmt::format("<{}>", value.TypeName()));
  }
}

DictItems SortedByKey(Budget& budget, DictItems items) {
  budget.Charge(items.size());
  StableSort(items, [&](const auto& x, const auto& y) { return Less(budget, x.first, y.first); });
  return items;
}

void WriteJson(Text& out, const Value& value, const JsonStyle& style, const std::string& newline);

// A key that is no string becomes one.
void WriteJsonKey(Text& out, const Value& key, const JsonStyle& style) {
  const std::string* text = key.AsString();
  if (text == nullptr && !key.IsNone() && !key.AsNumber()) {
    Raise("keys of JSON must not be {}", key.TypeName());
  }
  if (text == nullptr) out.Add("\"");
  WriteJson(out, key, style, "");
  if (text == nullptr) out.Add("\"");
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
    const bool finite = std::isfinite(*number);
    out.Add(finite                ? FloatText(*number)
            : std::isnan(*number) ? "NaN"
            : *number < 0         ? "-Infinity"
                                  : "Infinity");
  } else if (value.IsInteger()) {
    Write(out, value, false);
  } else if (const List* list = value.AsList();
             list && (list->kind == ListKind::kList || list->IsTuple())) {
    items(list->items, "[", "]", [&](const Value& v) { WriteJson(out, v, style, inner); });
  } else if (const Dict* dict = value.AsDict()) {
    items(style.sort_keys ? SortedByKey(out.budget(), dict->items) : dict->items, "{", "}",
          [&](const auto& entry) {
            WriteJsonKey(out, entry.first, style);
            out.Add(style.key_separator);
            WriteJson(out, entry.second, style, inner);
          });
  } else {
    Raise("a value of type {} cannot be written as JSON", value.TypeName());
  }
}

}  // namespace

std::string Str(Budget& budget, const Value& value) {
  Text out(budget);
  Write(out, value, false);
  return out.Take();
}

std::string Repr(Budget& budget, const Value& value) {
  Text out(budget);
  Write(out, value, true);
  return out.Take();
}

std::string ToJson(Budget& budget, const Value& value, const JsonStyle& style) {
  Text out(budget);
  WriteJson(out, value, style, "\n");
  return out.Take();
}

}  // namespace nibble::jinja
