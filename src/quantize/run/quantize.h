// SPDX-License-Identifier: Apache-2.0
// `nibble quantize`: a Hugging Face directory in, a Nibble checkpoint out. The layer loop is
// resumable: every finished layer is one file in OUT.partial, and OUT appears by one rename.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "quantize/map/channels.h"
#include "quantize/map/invariance.h"
#include "quantize/plan/choose_cache.h"
#include "quantize/recipes/effort.h"
#include "quantize/recipes/recipe.h"

namespace nibble {

struct QuantizeOptions {
  std::string model, output;
  Recipe recipe;
  std::string calibration_text;  // file; empty: the embedded sample text
  Effort effort = kBalanced;     // decides on the next two where they are 0
  int64_t calibration_windows = 0;
  int64_t context = 0;  // tokens of a window, at most the model's
  uint64_t seed = 0;
  std::string device = "cpu";
  // Tokens on which the caller measures the loss afterwards: a part of the time, nothing else.
  int64_t loss_tokens = 0;
  double memory = 0;    // bytes that the run may use; 0 = what is free
  bool resume = false;  // continue OUT.partial if it exists
  bool force = false;   // replace OUT if it exists
};

// The resources that a run takes.
struct QuantizeEstimate {
  int64_t parameters = 0;
  double output_bytes = 0, peak_memory_bytes = 0, disk_bytes = 0;
  double device_bytes = 0;  // of a GPU's memory
  bool spills = false;  // windows of calibration to a file beside the output, for want of memory
  double seconds = 0;   // roughly; by PlanQuantization
  double bits_per_weight = 0;  // of the quantized linears, scales included
};

struct LayerReport {
  int64_t layer = 0;
  std::vector<std::pair<Role, double>> errors;  // relative output error of the rounded linears
};

struct QuantizeReport {
  std::string output;  // as it can be opened
  ModelConfig config;
  Plan plan;
  QuantizeEstimate estimate;
  Recipe recipe;                                 // the options', as it fits the model
  int64_t calibration_windows = 0, context = 0;  // that it calibrates on
  Invariance invariance;                         // of what the recipe maps
  std::vector<LayerReport> layers;
  std::optional<CacheChoice> cache;  // of recipes that leave bits of the cache to calibration
  std::string scale_tuning_skipped;  // why those that the recipe learns are not learned, or empty
  double seconds = 0;
  double output_bytes = 0, quantized_bits_per_weight = 0;
  int64_t resumed_layers = 0;
};

// The text that `options` calibrate on.
std::string CalibrationText(const QuantizeOptions& options);

// Plan and estimate only (--dry-run), from the shapes; writes nothing.
QuantizeReport PlanQuantization(const QuantizeOptions& options);

// The whole job. Throws kInterrupted (exit 75) after finishing the running layer on SIGINT/SIGTERM.
// `unrotated`: for several recipes on one model, device and calibration, what a pass without a
// rotation saw of channels; empty, it is filled by the first job that needs it.
QuantizeReport Quantize(const QuantizeOptions& options,
                        std::vector<LayerStatistics>* unrotated = nullptr);

}  // namespace nibble
