// SPDX-License-Identifier: Apache-2.0
// Exact maps of single channels that depend on the network's inputs: SmoothQuant's scales of norms'
// outputs, QServe's of keys and of what o and down read (folded into q and k, v and up), and QUIK's
// and Atom's orders, outliers last. Orders of down's input are folded into gate and up; others are
// gathers at run time.
#pragma once

#include <vector>

#include "quantize/map/rotate.h"
#include "quantize/walk/calibrate.h"
#include "quantize/walk/key_statistics.h"

namespace nibble {

// Statistics of an input's channels in calibration, behind its online transform.
struct ChannelStatistics {
  std::vector<double> largest, energy;  // [K]: max |x| and sum x^2
  int64_t tokens = 0;
};
struct LayerStatistics {
  // Inputs by the first linear that reads them. Experts read one norm's output, so that each has
  // here the statistics of what all of them see.
  ByRole<ChannelStatistics> inputs;
  KeyStatistics keys;
};

// Windows enough for CollectStatistics: outliers stay in their channels (docs/quality.md).
inline constexpr int64_t kStatisticsWindows = 8;

// One pass of `ids`, windows of `context` tokens, through the unrounded network; keys only where
// they are asked for. progress as in Calibration, over the whole network.
std::vector<LayerStatistics> CollectStatistics(Backend& backend, const ModelConfig& config,
                                               const Plan& plan, const Rotator& rotator,
                                               std::span<const int32_t> ids, int64_t context,
                                               bool with_keys,
                                               const Calibration::Progress& progress);

// Scales and orders the channels of layer `index` as recipe and plan want it.
void ArrangeChannels(const LayerStatistics& statistics, const ModelConfig& config,
                     const Recipe& recipe, const Plan& plan, int64_t index, FloatLayer& layer);

}  // namespace nibble
