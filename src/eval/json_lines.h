// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "base/json.h"

namespace nibble {

// Calls visit(object, "FILE:LINE") for every line of a file of JSON Lines (at most 1 GiB, 1,000,000
// lines); stops where visit returns false. A line that is not a JSON object is an error naming the
// line.
void ReadJsonLines(const std::string& path,
                   const std::function<bool(const Json& object, const std::string& where)>& visit);

}  // namespace nibble
