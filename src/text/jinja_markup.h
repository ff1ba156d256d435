// SPDX-License-Identifier: Apache-2.0
// What Python's markupsafe does with a text that is HTML already, which `safe` and `escape` make:
// texts that are joined to it with "+", "%" or a method of it are escaped, and the result is of
// this kind again. What a template prints, "~" and filters such as `join` take it for plain text.
#pragma once

#include <string>

#include "text/jinja_builtins.h"

namespace nibble::jinja {

Value MakeMarkup(Budget& budget, std::string text);
// With &, <, > and quotes as entities; what is Markup already stays.
std::string EscapeHtml(Budget& budget, const Value& value);
// `result`, its texts being Markup where `model` is.
Value MarkupAs(Budget& budget, const Value& model, Value result);
// A method of a text that is Markup.
Value CallMarkupMethod(Context& context, const Callable& method, Args args);

}  // namespace nibble::jinja
