// SPDX-License-Identifier: Apache-2.0
// Factors of the scales of rounded linears: of their rows, and of what they read behind norms.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "quantize/learn/adam.h"
#include "quantize/walk/backprop.h"

namespace nibble {

// Factors by layer; linears at 16 bits and those with a bias keep their scales.
using ScaleFactors = std::vector<LayerScales>;

// The result of learning.
struct Learned {
  ScaleFactors factors;
  Matrix<float> head;  // [vocab, hidden]; empty where it stays
};

// Endings of the names of saved vectors, behind a linear's name.
inline constexpr const char *kOfRows = ".rows", *kOfInputs = ".inputs";

// Gives what rounded linears read behind norms scales, which begin as 1.
void PlanInputScales(const ModelConfig& config, Plan& plan);

// Returns whether every scale of a vector that has factors has one above 0.
bool Fits(const LayerScales& factors, const LayerWeights& layer);
// Multiplies scales; fp16 ones are rounded. The factors fit.
void ApplyScales(const LayerScales& factors, LayerWeights& layer);

// Learning under way, by name: how far it is, and Adam::state of each vector that is learned.
using LearningState = std::map<std::string, std::vector<float>>;

// The descent of a layer's factors, by their logarithms.
class ScaleDescent {
 public:
  explicit ScaleDescent(const LayerWeights& layer);

  // Adam::Step, given the logarithms' gradients.
  void Step(const LayerScales& gradients, int64_t step, double share);
  void KeepBest();
  LayerScales factors() const { return Of(&Adam::values); }
  LayerScales best() const { return Of(&Adam::best); }

  // Write and read the part of a state that belongs to layer `index`.
  void Save(int64_t index, LearningState& state) const;
  void Resume(int64_t index, const LearningState& state);

 private:
  LayerScales Of(std::span<const float> (Adam::*logarithms)() const) const;

  ByRole<Adam> rows_, inputs_;
};

}  // namespace nibble
