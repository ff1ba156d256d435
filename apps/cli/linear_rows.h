// SPDX-License-Identifier: Apache-2.0
// Tables with a line per linear, layers that are alike in one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/config.h"

namespace nibble::cli {

// Appends, for every role, a row for each different answer of cells(layer, role): "layers.*.down"
// or "layers.0-3,7.down", then the cells. Experts that are all alike share theirs:
// "experts.*.down".
void AddLinearRows(const ModelConfig& config,
                   const std::function<std::vector<std::string>(int64_t, Role)>& cells,
                   std::vector<std::vector<std::string>>& rows);

}  // namespace nibble::cli
