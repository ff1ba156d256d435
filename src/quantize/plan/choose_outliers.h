// SPDX-License-Identifier: Apache-2.0
// QUIK's choices for single layers (Ashkboos et al. 2023): which inputs have no outliers, and which
// are so wide all over that 8 bits are needed.
#pragma once

#include <span>
#include <vector>

#include "quantize/map/channels.h"

namespace nibble {

// Returns the rules that the statistics of all layers add to a recipe with an order of channels.
// Linears have weights and activations of 8 bits where their input's mean square is among the
// largest, Recipe::wide_inputs of all. They have no tail where no value of the input is above
// Recipe::tail_threshold, twice that where activations have 8 bits or more.
//
// An FFN's experts are one input: the largest of their values and the mean of all of their squares
// count.
std::vector<Rule> RulesOfOutliers(std::span<const LayerStatistics> statistics,
                                  const ModelConfig& config, const Recipe& recipe,
                                  const Plan& plan);

}  // namespace nibble
