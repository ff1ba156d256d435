// SPDX-License-Identifier: Apache-2.0
// The rotation R of the residual stream, learned from calibration data. A row's rounding error is
// in proportion to its largest element, so R gives small peaks to what linears behind norms read
// and to the rows of their weights. Learning R is SpinQuant's idea (Liu et al. 2024), which
// descends on the network's loss.
//
// Here it is a sum over norms: with x the norm's output, W the linears behind it, p = 10,
//   (mean |R x|_p^2 * |W|^2 / 4^a + mean |x|^2 * sum over rows w of W of |R w|_p^2 / 4^b)
//       / mean |W x|^2.
//
// |.|_p^2 / 4^bits stands for the squared step of the quantizer, with a bits for x and b for w. So
// this is, but for a factor, the relative error of outputs rounded to nearest.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "compute/dense_math.h"
#include "quantize/map/rotate.h"
#include "quantize/walk/stream.h"

namespace nibble {

// Rows that will be quantized.
struct PeakedRows {
  Matrix<float> rows;  // [T, n]
  double weight;       // of the mean squared peak
  int64_t group = 0;   // elements that share a scale; 0 = the row
};

inline constexpr int64_t kRotationWindows = 8;

// Collects for attention and MLP of every layer some outputs of their norms, without the norms'
// weights, from one pass of the first windows of `ids` (windows of `context` tokens) through the
// unrounded network; and the rows of the weights that read them.
// progress(layer), before each, may throw.
std::vector<PeakedRows> CollectPeakedRows(Backend& backend, const ModelConfig& config,
                                          const Plan& plan, const Rotator& rotator,
                                          std::span<const int32_t> ids, int64_t context,
                                          const std::function<void(int64_t)>& progress);

// Bytes and operations of collecting and learning, for estimates.
double LearningBytes(const ModelConfig& config, int64_t context);
double LearningFlops(const ModelConfig& config);

// The orthogonal R [n, n] that kRotationSteps gradient steps from the identity lead to; progress is
// told the number of each.
inline constexpr int64_t kRotationSteps = 300;
Matrix<double> LearnRotation(std::span<const PeakedRows> sets, const DenseMath& math,
                             const std::function<void(int64_t steps)>& progress);

}  // namespace nibble
