// SPDX-License-Identifier: Apache-2.0
// Formats of strings (JSON Schema's "format") as patterns.
#pragma once

#include <optional>
#include <string>

namespace nibble::grammar {

// Each is part of what its RFC allows, of bounded length. Other formats say nothing.
std::optional<std::string> FormatPattern(const std::string& format);

}  // namespace nibble::grammar
