// SPDX-License-Identifier: Apache-2.0
// Runs a parsed template, within bounds: no template can hang or exhaust memory or the stack (the
// deepest tests fit in 1 MiB of it, optimized build).
//
// Scopes are jinja2's: `for` opens one per iteration, `with` and a captured body one, `if` none; a
// macro sees its parameters and the variables where it is defined.
#pragma once

#include <ctime>
#include <map>
#include <string>

#include "text/jinja_parser.h"

namespace nibble::jinja {

inline constexpr int kMaxMacroDepth = 100;
inline constexpr int kMaxEvalDepth = 1500;

using Variables = std::map<std::string, Value, std::less<>>;

// Throws TemplateError ("line 3: ..."), or nibble::Error with the template's own message where it
// calls raise_exception. `now` is what strftime_now formats.
std::string Evaluate(const Node& root, Variables variables, const std::tm& now);

}  // namespace nibble::jinja
