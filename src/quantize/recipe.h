// SPDX-License-Identifier: Apache-2.0
// A recipe is a quantization method as data: which transforms, which formats, which rounding. Every
// field can be overridden on the command line, so hybrids cost nothing. The engine never sees one.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "models/plan.h"

namespace nibble {

enum class Rotation { kNone, kHadamard, kRandom };  // of the residual stream; kNone drops all
enum class Rounding { kNearest, kGptq };

std::string_view RotationName(Rotation rotation);  // "none", "hadamard", "random"
std::string_view RoundingName(Rounding rounding);  // "rtn", "gptq"

struct Recipe {
  std::string_view name;
  std::string_view summary;  // one line for --help
  Rotation rotation = Rotation::kNone;
  Rounding rounding = Rounding::kNearest;
  FormatSpec weights, activations, k, v;  // of all layer linears; the head stays at 16 bits
  // GPTQ (Frantar et al. 2022).
  bool act_order = false;  // columns by falling Hessian diagonal
  double damp = 0.01;      // share of the mean diagonal added before factoring
  // Calibrate on the inputs as the quantized network sees them (activation and cache quantization
  // on) instead of in fp32.
  bool quantized_calibration = false;
  // Share of GPTAQ's correction for the difference between the fp32 and the quantized input; 0 =
  // plain GPTQ (Li et al. 2025).
  double gptaq = 0;
};

extern const Recipe kRtnRecipe;
extern const Recipe kGptqRecipe;
extern const Recipe kQuarotRecipe;

std::span<const Recipe* const> Recipes();
const Recipe& FindRecipe(std::string_view name);  // unknown: usage error listing the known ones

// The concrete plan: formats and online transforms of every linear of this model. Throws (usage)
// where a group does not divide a width.
Plan MakePlan(const ModelConfig& config, const Recipe& recipe);

}  // namespace nibble
