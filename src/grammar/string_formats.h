// SPDX-License-Identifier: Apache-2.0
// Formats of strings (JSON Schema's "format") as patterns.
#pragma once

#include <optional>
#include <string>

namespace nibble::grammar {

// A pattern for part of the texts that the format's RFC allows, of bounded length; nullopt for
// other formats, which say nothing.
std::optional<std::string> FormatPattern(const std::string& format);

}  // namespace nibble::grammar
