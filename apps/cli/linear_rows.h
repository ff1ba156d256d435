// SPDX-License-Identifier: Apache-2.0
// Tables with a line per linear, layers that are alike in one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "formats/kv_format.h"
#include "models/config.h"

namespace nibble::cli {

// Appends, for every role, a row for each different answer of cells(layer, role): "layers.*.down"
// or "layers.0-3,7.down", then the cells. Experts that are all alike share theirs:
// "experts.*.down".
void AddLinearRows(const ModelConfig& config,
                   const std::function<std::vector<std::string>(int64_t, Role)>& cells,
                   std::vector<std::vector<std::string>>& rows);
// The text for a recent form of this cache's format: " (8 bits for first and last tokens)", or
// nothing.
std::string RecentText(const FormatSpec& format, int recent_bits);
// The text for the keys or values of all layers: "8 asym", or "4 asym in layers 0-3,7, else 8
// asym".
std::string CacheText(const std::vector<KvSpec>& caches, FormatSpec KvSpec::*part);

}  // namespace nibble::cli
