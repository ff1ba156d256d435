// SPDX-License-Identifier: Apache-2.0
// Markup is a text that is HTML already, made by `safe` and `escape`; it behaves as in Python's
// markupsafe: texts that are joined to it with "+", "%" or one of its methods are escaped, and the
// result is Markup again. Printing, "~" and filters such as `join` take it for plain text.
#pragma once

#include <string>

#include "text/jinja_builtins.h"

namespace nibble::jinja {

Value MakeMarkup(Budget& budget, std::string text);
// Writes &, <, > and quotes as entities; a value that is Markup already stays as it is.
std::string EscapeHtml(Budget& budget, const Value& value);
// Returns `result`, whose texts become Markup if `model` is.
Value MarkupAs(Budget& budget, const Value& model, Value result);
// Calls a method of a text that is Markup.
Value CallMarkupMethod(Context& context, const Callable& method, Args args);

}  // namespace nibble::jinja
