// SPDX-License-Identifier: Apache-2.0
// Types of which a block of a row shares its scales, as GGUF files store weights (layouts: ggml's
// ggml-common.h). They are read, never written.
#pragma once

#include <string_view>

#include "tensor/tensor.h"

namespace nibble {

struct BlockType {
  DType dtype;
  std::string_view name;  // "Q4_K"
  int64_t elements;       // of a block
  size_t bytes;           // of a block
  // Decodes one block to `elements` floats, exact but for one rounding of each fp32 operation.
  void (*decode)(const std::byte* block, float* values);
};

// Returns nullptr if the elements of a type stand alone.
const BlockType* BlockTypeOf(DType dtype);

}  // namespace nibble
