// SPDX-License-Identifier: Apache-2.0
// Python's operators on template values. Integers are computed in 128 bits, beyond which they raise
// an error.
#pragma once

#include <string_view>

#include "text/jinja_builtins.h"

namespace nibble::jinja {

// op: + - * / // % **, on numbers, and where Python has them on texts and lists.
Value Arithmetic(Budget& budget, std::string_view op, const Value& a, const Value& b);
// op: == != < <= > >= in, or "not in".
bool Compare(Budget& budget, std::string_view op, const Value& a, const Value& b);
// The value of an integer as an index, clamped to 64 bits; nullopt for other values.
std::optional<int64_t> IndexOf(const Value& value);
// object[start:stop:step] of a list or text; None is an absent bound.
Value Slice(Context& context, const Value& object, const Value (&bounds)[3]);

}  // namespace nibble::jinja
