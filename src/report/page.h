// SPDX-License-Identifier: Apache-2.0
// The page of `nibble report`: one HTML file with its figures in it, which loads nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "eval/perplexity.h"
#include "report/checkpoint_sizes.h"
#include "report/incoherence.h"
#include "report/stream_quality.h"

namespace nibble {

struct CheckpointReport {
  std::string name, cache_keys, cache_values;  // the cache's formats
  std::vector<RoleSize> sizes;
  StreamQuality stream;
  KlResult loss;
};

struct ModelReport {
  std::string name, shape;                // "llama, 134.5 M parameters, .."
  std::string recipe;                     // whose transforms `after` has
  std::string transforms;                 // one sentence on what they are
  std::string text;                       // on what was measured: "8 windows of 512 tokens of .."
  int64_t layer = 0;                      // whose channels are drawn
  std::vector<LayerSizes> before, after;  // of all layers
  std::vector<CheckpointReport> checkpoints;
};

// The first bytes of every page, by which a later run knows its own.
inline constexpr std::string_view kPageBegin = "<!doctype html>\n<!-- nibble report -->\n";

std::string ReportPage(const ModelReport& report);

}  // namespace nibble
