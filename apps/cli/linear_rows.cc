// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/linear_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

namespace nibble::cli {
namespace {

// Text for rising numbers: "0-3,7".
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

using Cells = std::vector<std::string>;
using Kinds = std::vector<std::pair<Cells, std::vector<int64_t>>>;  // answers and their layers

void AddKind(int64_t layer, const Cells& row, Kinds& kinds) {
  auto kind = std::ranges::find(kinds, row, [](const auto& k) { return k.first; });
  if (kind == kinds.end()) kind = kinds.insert(kind, {row, {}});
  kind->second.push_back(layer);
}

}  // namespace

void AddLinearRows(const ModelConfig& config, const std::function<Cells(int64_t, Role)>& cells,
                   std::vector<Cells>& rows) {
  std::map<Role, Kinds> of_roles;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (Role role : config.layer_roles(layer)) AddKind(layer, cells(layer, role), of_roles[role]);
  }
  for (const auto& [role, kinds] : of_roles) {
    std::string name = RoleName(role);
    if (ExpertOf(role) >= 0 && std::ranges::all_of(of_roles, [&](const auto& other) {
          const bool beside = ExpertOf(other.first) >= 0 && KindOf(other.first) == KindOf(role);
          return !beside || other.second == kinds;
        })) {
      if (ExpertOf(role) > 0) continue;
      name = "experts.*." + RoleName(KindOf(role));
    }
    for (const auto& [row, of] : kinds) {
      const bool all = static_cast<int64_t>(of.size()) == config.layers;
      rows.push_back({fmt::format("layers.{}.{}", all ? "*" : Ranges(of), name)});
      rows.back().insert(rows.back().end(), row.begin(), row.end());
    }
  }
}

std::string RecentText(const FormatSpec& format, int recent_bits) {
  return format.bits < recent_bits
             ? fmt::format(" ({} bits for first and last tokens)", recent_bits)
             : "";
}

std::string CacheText(const std::vector<KvSpec>& caches, FormatSpec KvSpec::*part) {
  Kinds kinds;
  for (size_t i = 0; i < caches.size(); ++i) {
    const FormatSpec& format = caches[i].*part;
    const std::string recent = RecentText(format, caches[i].recent_bits);
    AddKind(static_cast<int64_t>(i), {FormatText(format) + recent}, kinds);
  }
  std::ranges::stable_sort(kinds, {}, [](const auto& kind) { return kind.second.size(); });
  std::string text;
  for (const auto& [format, layers] : std::span(kinds).first(kinds.size() - 1)) {
    text += fmt::format("{} in layers {}, else ", format[0], Ranges(layers));
  }
  return text + kinds.back().first[0];
}

}  // namespace nibble::cli
