// SPDX-License-Identifier: Apache-2.0
#include "quantize/recipes/effort.h"

#include <algorithm>
#include <array>

namespace nibble {

namespace {
constexpr int64_t kMaxTokens = kBest.windows * kBest.context;  // that an expert's share asks for
}

std::span<const Effort> Efforts() {
  static constexpr std::array kAll = {kFast, kBalanced, kBest, kPaper};
  return kAll;
}

const Effort& FindEffort(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Effort& effort : Efforts()) {
    if (effort.name == name) return effort;
    known.push_back(effort.name);
  }
  FailUsage("no quality \"{}\"; choose one of {}", name, fmt::join(known, ", "));
}

int64_t Effort::WindowsFor(const ModelConfig& config, int64_t tokens) const {
  int64_t needed = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    for (Role role : config.layer_roles(i)) {
      const int64_t of_text = tokens_per_channel * config.inputs(i, role);
      const bool routed = ExpertOf(role) >= 0 && ExpertOf(role) < config.router.experts;
      needed = std::max(needed, routed ? std::min(of_text * config.router.experts /
                                                      config.router.experts_per_token,
                                                  kMaxTokens)
                                       : of_text);
    }
  }
  return std::max(windows, (needed + tokens - 1) / tokens);
}

Recipe WithEffort(Recipe recipe, const Effort& effort) {
  recipe.learned_scales = recipe.learned_scales && effort.learns_scales;
  recipe.sweeps = std::min(recipe.sweeps, effort.sweeps);
  return recipe;
}

}  // namespace nibble
