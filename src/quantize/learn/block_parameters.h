// SPDX-License-Identifier: Apache-2.0
// What OmniQuant learns of one layer (Shao et al. 2023): clips of weights, and scales of channels
// that norms and v give out (its LWC and LET).
//
// A group of weights w has the range [sigmoid(b) min w, sigmoid(g) max w]; b and g begin at 4, next
// to no clip. A channel's scale divides what norms and v give out and multiplies the weights that
// read it, so that the network in floats stays what it is.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "quantize/learn/adam.h"
#include "quantize/map/rotate.h"

namespace nibble {

// Gradients through rounding, which counts as the identity within a range; at its ends weights
// follow the ends, and a scale that grows moves each weight by its rounding error. w [N, K] is
// rounded in groups of `format`, asymmetric, with the logits [N, groups] of both ends.
//
// `gradients` [N, K], those of the rounded weights, become those of w.
struct EndGradients {
  std::vector<float> low, high;  // of the logits
};
EndGradients ThroughRounding(const Matrix<double>& w, const FormatSpec& format,
                             std::span<const float> low, std::span<const float> high,
                             Matrix<float>& gradients);

// What a set of linears read: x [tokens, K] as floats and as their codes mean it, and the
// gradients.
struct ReadInputs {
  std::span<const float> exact, rounded, gradients;
};
// The gradient of the logarithms of factors of x's columns, through rounding to `format`: a token's
// step is a share of its range, which its largest and smallest elements span.
std::vector<double> FactorGradients(const ReadInputs& x, int64_t width, const FormatSpec& format);

class BlockParameters {
 public:
  // `layer`: as it is before; it has to stay. `scales`: those of channels are learned as well.
  BlockParameters(const ModelConfig& config, const Plan& plan, int64_t index,
                  const FloatLayer& layer, bool scales);
  bool empty() const { return high_.begin() == high_.end(); }  // nothing is rounded

  // The layer with the scales of this step, and its copy with weights cut off.
  const FloatLayer& scaled() const { return scaled_; }
  FloatLayer Clipped() const;

  // Takes the gradients of a linear's rounded weights [N, K] and of what a set reads.
  void AddWeights(Role role, Matrix<float> gradients);
  void AddInputs(Role first, const ReadInputs& x);
  // The gradients of the logarithms of factors of v's rows.
  void AddValues(std::span<const float> gradients);
  // Moves all parameters by what was taken since the last step, by `share` of their rates.
  void Step(double share = 1);

 private:
  void Scale();

  const ModelConfig& config_;
  const Plan& plan_;
  const int64_t index_;
  const FloatLayer& layer_;
  FloatLayer scaled_;
  ByRole<Adam> low_, high_;  // logits of ends, [N, groups]
  ByRole<EndGradients> ends_;
  std::map<LayerVector, Adam> norms_;  // logarithms of scales, [hidden]
  std::map<LayerVector, std::vector<float>> norm_gradients_;
  Adam values_;  // likewise, [kv_heads, head_dim]
  std::vector<float> value_gradients_;
  int64_t steps_ = 0;
};

}  // namespace nibble
