// SPDX-License-Identifier: Apache-2.0
// The arguments of the verb quantize, for other verbs that quantize.
#pragma once

#include <string>
#include <vector>

#include "quantize/quantize.h"

namespace nibble::cli {

// What `nibble quantize ARGUMENTS` would do: the same options, the same checks. Throws (usage) for
// what the verb refuses. The device is not among them.
QuantizeOptions ParseQuantizeArguments(std::vector<std::string> arguments);

}  // namespace nibble::cli
