// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of engine/ and eval/: the sample model with a value of one's own.
#pragma once

#include <memory>

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

}  // namespace nibble
