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
#include "models/import/open_network.h"

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

// Two of the six layers see the whole text, the others 100 tokens.
inline std::unique_ptr<Model> TinyWithWindows(std::unique_ptr<Backend> backend) {
  Network network = OpenNetwork(kTinyModel);
  network.config.specs.clear();
  for (const int64_t window : {100, 100, 0, 100, 100, 0}) {
    network.config.specs.push_back({.sliding_window = window});
  }
  return std::make_unique<Model>(std::move(network), std::move(backend));
}

// TinyWithWindows with a cache of three bits and a recent form of `recent_bits`; 0: without one.
inline std::unique_ptr<Model> TinyWithRecent(std::unique_ptr<Backend> backend, int recent_bits) {
  auto model = TinyWithWindows(std::move(backend));
  std::vector<KvSpec> caches;
  for (int64_t i = 0; i < model->config().layers; ++i) {
    KvSpec cache = model->kv_groups().cache(i);
    cache.k = cache.v = {.bits = 3, .symmetric = false};
    cache.recent_bits = recent_bits;
    caches.push_back(cache);
  }
  model->UseCaches(caches);
  return model;
}

inline std::vector<float> AllLogits(Model& model, std::span<const int32_t> ids) {
  KvCache cache = model.MakeCache();
  const Model::Sequence sequence = {ids, &cache};
  const float* x = model.Forward({&sequence, 1});
  const float* logits = model.Logits(x, static_cast<int64_t>(ids.size()));
  return {logits, logits + ids.size() * static_cast<size_t>(model.config().vocab_size)};
}

// sqrt(sum (a - b)^2 / sum b^2)
inline double RelativeError(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double errors = 0, squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    errors += std::pow(double{a[i]} - b[i], 2);
    squares += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(errors / squares);
}

// The relative error of the sample model's logits on a GPU: bf16 loses up to 2^-9 of q, k, v, gate
// and up in each of six layers; losses add up like noise.
inline double GpuError() {
  return std::sqrt(5 * 6) * 0x1p-9;
}

// The largest |a - b|; infinite where the sum of `a` is not finite.
inline double LargestDifference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
  }
  return std::isfinite(std::accumulate(a.begin(), a.end(), 0.0)) ? largest : INFINITY;
}

}  // namespace nibble
