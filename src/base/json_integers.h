// SPDX-License-Identifier: Apache-2.0
// JSON's integers have no bounds, nlohmann's 64 bits: ParseJson gives the nearest double of one
// beyond. Here it is kept as its digits, in nlohmann's binary type, which JSON text has no use for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace nibble {

Json ParseJsonKeepingIntegers(std::string_view text, const std::string& where);
std::optional<std::string> BigIntegerOf(const Json& value);  // the digits of one that was kept

}  // namespace nibble
