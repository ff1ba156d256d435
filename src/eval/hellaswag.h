// SPDX-License-Identifier: Apache-2.0
// HellaSwag (Zellers et al. 2019) in its published form, prepared as lm-evaluation-harness does it.
#pragma once

#include <string>

#include "base/json.h"

namespace nibble {

// {ctx_a, ctx_b, activity_label, endings, label} to {query, choices, gold}: WikiHow's " [title]"
// becomes ". ", other brackets go, double spaces become single ones, and ctx_b is capitalized
// as by Python's str.capitalize.
Json PrepareHellaSwag(const Json& line, const std::string& where);

}  // namespace nibble
