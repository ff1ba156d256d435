// SPDX-License-Identifier: Apache-2.0
// JSON's integers have no bounds, but nlohmann's have 64 bits: ParseJson turns a larger one into
// the nearest double. Here its digits are kept, in nlohmann's binary type, which JSON text has no
// use for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace nibble {

Json ParseJsonKeepingIntegers(std::string_view text, const std::string& where);
std::optional<std::string> BigIntegerOf(const Json& value);  // the digits of a kept integer

}  // namespace nibble
