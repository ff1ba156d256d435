// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "models/checkpoint/packed_checkpoint.h"
#include "quantize/map/rotate.h"

namespace nibble {

// The tensors outside layers: the tables as planned, and the final norm unless it is folded. head
// [vocab, hidden], where it is not empty, takes the place of the rotated one.
std::vector<NamedTensor> RestTensors(const Rotator& rotator, const Network& source,
                                     const Plan& plan, const Matrix<float>& head = {});

}  // namespace nibble
