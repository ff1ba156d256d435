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
  const auto head = std::make_shared<Matrix<float>>(ToF32(net.head.weights.values));
  head->data.back() = value;
  net.head.weights.values = {
      DType::kF32, {head->rows, head->cols}, reinterpret_cast<const std::byte*>(head->data.data())};
  net.memory = head;
  return std::make_unique<Model>(std::move(net), MakeBackend("cpu", false));
}

}  // namespace nibble
