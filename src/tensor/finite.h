// SPDX-License-Identifier: Apache-2.0
// NaN and infinities poison every value that is computed with them; they are refused where numbers
// come in and where logits go out. The check runs at the speed of memory.
#pragma once

#include <span>
#include <string>

#include "tensor/tensor.h"

namespace nibble {

bool AllFinite(std::span<const float> values);

// The number of values of a tensor (F32, F16, BF16 or blocks) that are NaN or infinite.
int64_t CountNotFinite(const Tensor& tensor);
// Throws an error that names `what` and their number if there are any.
void RequireFinite(const Tensor& tensor, const std::string& what);

}  // namespace nibble
