// SPDX-License-Identifier: Apache-2.0
// Incoherence (QuIP, Chee et al. 2023): how far the largest entry stands out of all. Quantizers
// with one scale for many entries lose least where it is small, and rotations make it so.
#pragma once

#include <map>
#include <vector>

#include "quantize/map/channels.h"

namespace nibble {

// max|W| sqrt(rows * cols) / |W|_F: from 1, all entries of one size, to sqrt(rows * cols), one
// alone. Not a number where all are 0.
double WeightIncoherence(const Matrix<double>& w);

// The inputs of one set of linears.
struct InputSizes {
  std::vector<double> largest;  // of each channel, max|x|
  double mean_square = 0;       // of all entries

  double max() const;
  // The largest entry over the root mean square of all. Not a number where all are 0.
  double incoherence() const;
};
InputSizes SizesOf(const ChannelStatistics& statistics);

struct LayerSizes {
  std::map<LinearSet::Kind, InputSizes> inputs;  // experts' together, where there is no FFN
  std::map<Role, double> weights;                // by kind; of experts the largest
};
// What `rotator` makes of each layer's weights, and inputs as a pass saw them.
std::vector<LayerSizes> MeasureSizes(const ModelConfig& config, const Rotator& rotator,
                                     const std::vector<LayerStatistics>& statistics);

}  // namespace nibble
