// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of engine/, quantize/ and eval/: the sample model with a value of one's own,
// and what a model says about all tokens.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "engine/model.h"

namespace nibble {

inline constexpr const char* kTinyModel = NIBBLE_SOURCE_DIR "/samples/tiny";

// The last token's logit becomes NaN or infinite if `value` is.
inline std::unique_ptr<Model> TinyWithHeadValue(float value) {
  Network net = OpenNetwork(kTinyModel);
  Tensor& values = net.head.weights.values;
  std::vector<float> head = ToF32(values).data;
  head.back() = value;
  values = Tensor::Of(DType::kF32, values.shape, std::move(head));
  return std::make_unique<Model>(std::move(net), MakeBackend("cpu", false));
}

inline std::vector<float> AllLogits(Model& model, std::span<const int32_t> ids) {
  KvCache cache = model.MakeCache();
  const Model::Sequence sequence = {ids, &cache};
  const float* x = model.Forward({&sequence, 1});
  const float* logits = model.Logits(x, static_cast<int64_t>(ids.size()));
  return {logits, logits + ids.size() * static_cast<size_t>(model.config().vocab_size)};
}

// Infinite where a sum of `a` is not finite.
inline double LargestDifference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
  }
  return std::isfinite(std::accumulate(a.begin(), a.end(), 0.0)) ? largest : INFINITY;
}

}  // namespace nibble
