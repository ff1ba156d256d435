// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_markup.h"

#include <algorithm>

namespace nibble::jinja {

Value MakeMarkup(Budget& budget, std::string text) {
  Text checked(budget);
  checked.Add(text);
  return std::make_shared<const Markup>(Markup{checked.Take()});
}

std::string EscapeHtml(Budget& budget, const Value& value) {
  const std::string text = Str(budget, value);
  if (value.IsMarkup()) return text;
  Text out(budget);
  std::string_view rest = text;
  while (true) {
    const size_t plain = std::min(rest.find_first_of("&<>'\""), rest.size());
    out.Add(rest.substr(0, plain));
    if (plain == rest.size()) return out.Take();
    const char c = rest[plain];
    out.Add(c == '&'   ? "&amp;"
            : c == '<' ? "&lt;"
            : c == '>' ? "&gt;"
            : c == '"' ? "&#34;"
                       : "&#39;");
    rest.remove_prefix(plain + 1);
  }
}

Value MarkupAs(Budget& budget, const Value& model, Value result) {
  if (!model.IsMarkup()) return result;
  if (const std::string* text = result.AsString()) return MakeMarkup(budget, *text);
  const List* list = result.AsList();
  if (list == nullptr) return result;
  std::vector<Value> items;
  for (const Value& item : list->items) items.push_back(MarkupAs(budget, model, item));
  return MakeList(budget, std::move(items), list->kind);
}

Value CallMarkupMethod(Context& context, const Callable& method, Args args) {
  const auto is = [&](const char* name) { return method.function == StringMethods().at(name); };
  const auto escape = [&](size_t position) {
    if (position >= args.positional.size()) return;
    Value& argument = args.positional[position];
    argument = EscapeHtml(context.budget, argument);
  };
  if (is("replace") || is("ljust") || is("rjust") || is("center")) {
    escape(1);
  } else if (is("join") && !args.positional.empty()) {
    std::vector<Value> items;
    const auto list = Iterate(context, args.positional[0]);
    for (const Value& item : list->items) {
      items.emplace_back(EscapeHtml(context.budget, item));
    }
    args.positional[0] = MakeList(context.budget, std::move(items));
  }
  Value result = method.function(context, method.self, args);
  return MarkupAs(context.budget, method.self, std::move(result));
}

}  // namespace nibble::jinja
