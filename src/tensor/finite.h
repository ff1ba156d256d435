// SPDX-License-Identifier: Apache-2.0
// NaN and infinities poison every value that is computed with them; they are refused where numbers
// come in and where logits go out. At the speed of memory.
#pragma once

#include <span>
#include <string>

#include "tensor/tensor.h"

namespace nibble {

bool AllFinite(std::span<const float> values);

// Of an F32, F16 or BF16 tensor.
int64_t CountNotFinite(const Tensor& tensor);
// Fails with `what` and their number if there are any.
void RequireFinite(const Tensor& tensor, const std::string& what);

}  // namespace nibble
