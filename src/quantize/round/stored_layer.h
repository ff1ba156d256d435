// SPDX-License-Identifier: Apache-2.0
// One layer on its way from float weights to a shard: rounded linears as codes, the others as fp32.
#pragma once

#include "models/checkpoint/packed_checkpoint.h"
#include "quantize/round/float_layer.h"
#include "quantize/round/round.h"

namespace nibble {

Tensor ToFloats(const Matrix<double>& w);  // fp32

// fp32 copies of a layer; no rounding.
LayerWeights StoreFloats(const FloatLayer& layer);
// Stores the linears that the plan does not round; the others have no weights yet, and input scales
// are 1.
LayerWeights StoreUnquantized(const FloatLayer& layer, const Plan& plan, int64_t index);
void SetRounded(Rounded rounded, PackedLinear& linear);
// Stores the whole layer in the plan's formats, rounded to nearest.
LayerWeights StoreNearest(const FloatLayer& layer, const Plan& plan, int64_t index);
// StoreNearest for a checkpoint: codes that are kept stay, and the memory of `layer` is given back.
// `errors` receives the relative error of each linear.
LayerWeights RoundLayerNearest(FloatLayer layer, const Plan& plan, int64_t index,
                               std::map<Role, double>& errors);

// Floats in a format, rounded to nearest where it has codes; `half` is what 16 bits are.
PackedWeights Store(const Matrix<double>& w, const FormatSpec& format, DType half);

// Inputs as the plan prepares them; permutations and scales are the layer's own.
LayerWeights Planned(LayerWeights layer, const Plan& plan, int64_t index);

}  // namespace nibble
