// SPDX-License-Identifier: Apache-2.0
// Python's operators on template values. Integers have 64 bits: an overflow raises.
#pragma once

#include <string_view>

#include "text/jinja_builtins.h"

namespace nibble::jinja {

// op: + - * / // % **, on numbers, and where Python has them on texts and lists.
Value Arithmetic(Budget& budget, std::string_view op, const Value& a, const Value& b);
// op: == != < <= > >= in, or "not in".
bool Compare(Budget& budget, std::string_view op, const Value& a, const Value& b);
// object[start:stop:step] of a list or text; None is an absent bound.
Value Slice(Context& context, const Value& object, const Value (&bounds)[3]);

}  // namespace nibble::jinja
