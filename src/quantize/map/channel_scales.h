// SPDX-License-Identifier: Apache-2.0
// Scales of single channels that nothing pays for at run time: a norm multiplies with weights
// anyway, and what one linear divides by another multiplies with.
#pragma once

#include "quantize/map/channels.h"

namespace nibble {

// s = max|x|^alpha / max|w|^(1 - alpha), the latter over all readers (equation 4 of SmoothQuant,
// Xiao et al. 2023). A channel that is zero on either side keeps its scale.
std::vector<double> SmoothingScales(const ChannelStatistics& input, double alpha,
                                    std::span<const Role> readers, const FloatLayer& layer);

// Recipe::smoothing, balance, key_smoothing, key_balance and center_keys of all layers, from
// statistics of the source as it is.
std::vector<ChannelScales> ScalesOf(const std::vector<LayerStatistics>& statistics,
                                    const Rotator& source, const ModelConfig& config,
                                    const Recipe& recipe);

}  // namespace nibble
