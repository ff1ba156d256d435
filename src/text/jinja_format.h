// SPDX-License-Identifier: Apache-2.0
// Python's two ways to put values into a text. A width is bounded by the longest text, a precision
// by kMaxPrecision. Numbers in bases other than ten have 64 bits; "#" means nothing for floats.
#pragma once

#include <string>

#include "text/jinja_builtins.h"

namespace nibble::jinja {

inline constexpr int64_t kMaxPrecision = 1000;

// format % values: a tuple's items, a dictionary's where the format names them, or one value.
// Where the format is Markup, the values are escaped.
Value FormatPercent(Budget& budget, const Value& format, const Value& values);
// format.format(*positional, **named)
Value FormatBraces(Context& context, const Value& format, const Args& args);

}  // namespace nibble::jinja
