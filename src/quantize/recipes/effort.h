// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "quantize/recipes/recipe.h"

namespace nibble {

// The time that a quantization may take for a better result (--quality), as what a run sees and
// learns. docs/quantize_your_model.md has what each level costs and gives.
struct Effort {
  std::string_view name, summary;
  // Calibration reads so many windows of at most `context` tokens, and more of them where a linear
  // would have fewer than `tokens_per_channel` tokens for each of its inputs; of a routed expert
  // that is its share of the tokens.
  int64_t windows, context, tokens_per_channel;
  bool learns_scales;  // of recipes that do
  int sweeps;          // at most

  int64_t WindowsFor(const ModelConfig& config, int64_t tokens) const;  // of so many tokens each
};

inline constexpr Effort kFast = {
    "fast", "8 windows of 512 tokens, codes chosen once", 8, 512, 1, false, 0};
inline constexpr Effort kBalanced = {"balanced", "16 windows of 512 tokens", 16, 512, 2, false, 3};
inline constexpr Effort kBest = {
    "best", "32 windows of 2048 tokens, learned scales", 32, 2048, 4, true, 3};

inline constexpr Effort kPaper = {
    "paper", "128 windows of 2048 tokens, as the papers calibrate; learned scales",
    128,     2048,
    0,       true,
    3};

std::span<const Effort> Efforts();
const Effort& FindEffort(std::string_view name);  // unknown: usage error listing the known ones

// The recipe as a level runs it, before a user changes its fields.
Recipe WithEffort(Recipe recipe, const Effort& effort);

}  // namespace nibble
