// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "quantize/walk/stream.h"

namespace nibble {

// Statistics of a layer's keys and of the queries that meet them, [kv_heads, head_dim] each.
// Channels that RoPE turns into each other have one value, and so have those of all heads where
// heads share the weights of a norm.
struct KeyStatistics {
  std::vector<double> largest;               // the longest pair, or |k| of a channel alone
  std::vector<double> energy, query_energy;  // sums of squares
  std::vector<double> spread;                // of keys less their mean, likewise
  std::vector<double> mean;                  // behind RoPE, of each channel by itself
};

// Collects over all windows of a stream that stands in front of q, k and v of the source in floats.
// A layer that reads the keys of another has no statistics; one whose keys others read has the mean
// alone.
KeyStatistics CollectKeys(Backend& backend, const ModelConfig& config, int64_t index,
                          const LayerWeights& layer, Stream& stream);

}  // namespace nibble
