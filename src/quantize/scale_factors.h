// SPDX-License-Identifier: Apache-2.0
// Factors of the scales of rounded linears: of their rows, and of what they read behind norms.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "quantize/adam.h"
#include "quantize/backprop.h"

namespace nibble {

// Factors by layer; linears at 16 bits and those with a bias keep their scales.
using ScaleFactors = std::vector<LayerScales>;

// What learning comes to in the end.
struct Learned {
  ScaleFactors factors;
  Matrix<float> head;  // [vocab, hidden]; empty where it stays
};

// In names of what is saved, behind a linear's.
inline constexpr const char *kOfRows = ".rows", *kOfInputs = ".inputs";

// Gives what rounded linears read behind norms scales, which begin as 1.
void PlanInputScales(const ModelConfig& config, Plan& plan);

// Whether there is a factor, above 0, for each scale of a vector that has factors.
bool Fits(const LayerScales& factors, const LayerWeights& layer);
// Multiplies scales; fp16 ones are rounded. The factors fit.
void ApplyScales(const LayerScales& factors, LayerWeights& layer);

// Learning under way, by name: how far it is, and Adam::state of each vector that is learned.
using LearningState = std::map<std::string, std::vector<float>>;

// The descent of a layer's factors, by their logarithms.
class ScaleDescent {
 public:
  explicit ScaleDescent(const LayerWeights& layer);

  // Adam::Step, given the logarithms' slopes.
  void Step(const LayerScales& slopes, int64_t step, double share);
  void KeepBest();
  LayerScales factors() const { return Of(&Adam::values); }
  LayerScales best() const { return Of(&Adam::best); }

  // Layer `index` in a state.
  void Save(int64_t index, LearningState& state) const;
  void Resume(int64_t index, const LearningState& state);

 private:
  LayerScales Of(std::span<const float> (Adam::*logarithms)() const) const;

  ByRole<Adam> rows_, inputs_;
};

}  // namespace nibble
