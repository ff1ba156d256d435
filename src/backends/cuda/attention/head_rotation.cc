// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/attention/rope_append.h"
#include "transforms/hadamard.h"

namespace nibble::cuda {

HeadRotation RotationOf(const TransformSpec& spec) {
  HeadRotation rotation = {};
  rotation.scale = static_cast<float>(spec.scale());
  int64_t stride = spec.order() * spec.inner;
  int rows = 0;
  for (const TransformFactor& factor : spec.factors) {
    stride /= factor.order;
    const bool dense = factor.kind != FactorKind::kSylvester;
    if (!factor.hadamard()) Fail("no CUDA kernel for a {} of a head", TransformText(spec));
    NIBBLE_CHECK(rotation.count < HeadRotation::kMaxFactors, "{} factors", spec.factors.size());
    rotation.factors[rotation.count++] = {.order = static_cast<int>(factor.order),
                                          .stride = static_cast<int>(stride),
                                          .signs = dense ? rows : -1};
    if (!dense) {
      NIBBLE_CHECK((stride & (stride - 1)) == 0, "stride {}", stride);
      continue;
    }
    NIBBLE_CHECK(rows + factor.order <= HeadRotation::kMaxSigns, "order {}", factor.order);
    const std::span<const int8_t> h = HadamardMatrix(factor);
    for (int64_t f = 0; f < factor.order; ++f) {
      for (int64_t i = 0; i < factor.order; ++i) {
        const uint64_t negative = h[static_cast<size_t>(f * factor.order + i)] < 0;
        rotation.negative[rows] |= negative << i;
      }
      ++rows;
    }
  }
  return rotation;
}

}  // namespace nibble::cuda
