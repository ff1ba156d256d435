// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "eval/perplexity.h"
#include "quantize/run/quantize.h"

namespace nibble::cli {

inline constexpr int64_t kLossContext = 512;  // tokens of a window, or the model's context

// The mean divergence that is left if one part of the checkpoint is not rounded.
struct LossParts {
  double float_inputs = 0, float_cache = 0;
};

// The loss by quantizing, on text that was not calibrated on.
struct Loss {
  KlResult result;                 // of the checkpoint against its source in fp32
  std::optional<KlResult> plain;   // of PlainRecipe, where the recipe is another
  std::optional<LossParts> parts;  // where the loss is much
  int64_t windows = 0, context = 0;
  double seconds = 0;
  std::string unmeasured;  // why it could not be measured; empty otherwise
};
// Bytes that measuring takes: the float model beside two quantized ones.
double LossBytes(const QuantizeEstimate& estimate);
// Measures on `windows` windows of the calibration text apart from those that the report's run has
// drawn.
Loss MeasureLoss(const QuantizeOptions& options, const QuantizeReport& report, int64_t windows);

Json LossJson(const Loss& loss);
// "perplexity 21.8 to 23.1 (+6 %), ..."; where the loss is much, with the part that costs most.
std::string LossText(const Loss& loss, const QuantizeReport& report);

}  // namespace nibble::cli
