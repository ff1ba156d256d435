// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/network.h"
#include "quantize/run/quantize.h"

namespace nibble {

// A quantization with everything decided: options without blanks, the source, and the plan.
struct Job {
  QuantizeOptions options;
  Network source;
  Plan plan;
  std::string scale_tuning_skipped;  // QuantizeReport
  std::vector<int32_t> calibration;  // windows, empty where nothing is calibrated
  std::string calibration_digest;
};

// Throws (usage) where the options do not fit the model.
Job PrepareJob(const QuantizeOptions& options);
// Fills in `calibration`, its digest and what the plan says of it, for a recipe that calibrates.
void TokenizeCalibration(Job& job);

// Everything that decides the result, byte for byte. A run is resumed only where all of it is the
// same. A program that quantizes one source again and again reads its files once.
Json Identity(const Job& job, const std::string& backend);

}  // namespace nibble
