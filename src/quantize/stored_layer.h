// SPDX-License-Identifier: Apache-2.0
// One layer on its way from float weights to a shard: rounded linears as codes, the others as fp32.
#pragma once

#include "models/packed_checkpoint.h"
#include "quantize/rotate.h"
#include "quantize/round.h"

namespace nibble {

// fp32 copies of a layer; no rounding.
LayerWeights StoreFloats(const FloatLayer& layer);
// The same of what the plan leaves at 16 bits; the others have no weights yet.
LayerWeights StoreUnquantized(const FloatLayer& layer, const Plan& plan, int64_t index);
void SetRounded(Rounded rounded, PackedLinear& linear);

// Inputs as the plan prepares them; permutations are the layer's own.
LayerWeights Planned(LayerWeights layer, const Plan& plan, int64_t index);

}  // namespace nibble
