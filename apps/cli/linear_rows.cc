// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/linear_rows.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::cli {
namespace {

// Rising numbers: "0-3,7".
std::string Ranges(const std::vector<int64_t>& numbers) {
  std::vector<std::string> parts;
  for (size_t i = 0, end; i < numbers.size(); i = end) {
    end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(end == i + 1 ? fmt::format("{}", numbers[i])
                                 : fmt::format("{}-{}", numbers[i], numbers[end - 1]));
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

}  // namespace

void AddLinearRows(int64_t layers,
                   const std::function<std::vector<std::string>(int64_t, Role)>& cells,
                   std::vector<std::vector<std::string>>& rows) {
  for (Role role : kLayerRoles) {
    std::vector<std::pair<std::vector<std::string>, std::vector<int64_t>>> kinds;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::vector<std::string> row = cells(layer, role);
      auto kind = std::ranges::find(kinds, row, [](const auto& k) { return k.first; });
      if (kind == kinds.end()) kind = kinds.insert(kind, {row, {}});
      kind->second.push_back(layer);
    }
    for (const auto& [row, of] : kinds) {
      rows.push_back(
          {fmt::format("layers.{}.{}", kinds.size() == 1 ? "*" : Ranges(of), RoleName(role))});
      rows.back().insert(rows.back().end(), row.begin(), row.end());
    }
  }
}

}  // namespace nibble::cli
