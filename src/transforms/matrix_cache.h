// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "transforms/transform_factor.h"

namespace nibble {

// The matrix of a factor [order, order], built once and transposed where the factor says so; it
// lives as long as the program. Thread-safe.
template <typename T>
std::span<const T> CachedMatrix(const TransformFactor& factor,
                                std::vector<T> (*build)(const TransformFactor&)) {
  static std::mutex mutex;
  static std::map<TransformFactor, std::vector<T>> cache;
  const std::lock_guard lock(mutex);
  std::vector<T>& matrix = cache[factor];
  if (!matrix.empty()) return matrix;
  matrix = build(factor);
  const auto n = static_cast<size_t>(factor.order);
  for (size_t i = 0; factor.transposed && i < n; ++i) {
    for (size_t j = 0; j < i; ++j) std::swap(matrix[i * n + j], matrix[j * n + i]);
  }
  return matrix;
}

}  // namespace nibble
