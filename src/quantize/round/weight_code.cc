// SPDX-License-Identifier: Apache-2.0
#include "quantize/round/weight_code.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "formats/lattice_codes.h"
#include "quantize/round/kmeans_code.h"

namespace nibble {

static_assert(LatticeCode::kWeights == WeightCode::kMaxWeights &&
              KmeansCode::kWeights == WeightCode::kMaxWeights);

float WeightCode::unit() const {
  switch (codebook_) {
    case Codebook::kHalfInteger:
      return 0.5f;
    case Codebook::kKmeans:
      return KmeansCode::kUnit;
    default:
      return LatticeCode(bits_).unit();
  }
}

// Of the grid: the inverse of the step with the least error, 0.9957, 0.5860 and 0.3352 (Max,
// Quantizing for minimum distortion, 1960). K-means saw numbers of deviation 1.
float WeightCode::deviation() const {
  constexpr float kSteps[] = {0.9957f, 0.5860f, 0.3352f};
  switch (codebook_) {
    case Codebook::kHalfInteger:
      return 1 / kSteps[bits_ - 2];
    case Codebook::kKmeans:
      return 1;
    default:
      return LatticeCode(bits_).deviation();
  }
}

uint32_t WeightCode::Encode(std::span<const double> weights, double scale) const {
  if (codebook_ == Codebook::kHalfInteger) {
    const double half = 1 << (bits_ - 1);
    return static_cast<uint32_t>(std::clamp(std::floor(weights[0] / (2 * scale)), -half, half - 1) +
                                 half);
  }
  if (codebook_ != Codebook::kKmeans) return LatticeCode(bits_).Encode(weights, scale);
  std::array<float, kMaxWeights> x;
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(weights[i] * (unit() / scale));
  return KmeansCode::Encode(x);
}

WeightCode::Codeword WeightCode::Decode(uint32_t code) const {
  switch (codebook_) {
    case Codebook::kHalfInteger:
      return {static_cast<int8_t>(2 * static_cast<int>(code) + 1 - (1 << bits_))};
    case Codebook::kKmeans:
      return KmeansCode::Decode(code);
    default:
      return LatticeCode(bits_).Decode(code);
  }
}

}  // namespace nibble
