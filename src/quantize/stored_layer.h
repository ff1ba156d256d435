// SPDX-License-Identifier: Apache-2.0
// One layer on its way from float weights to a shard: rounded linears as codes, the others as fp32.
#pragma once

#include "models/packed_checkpoint.h"
#include "quantize/rotate.h"
#include "quantize/round.h"

namespace nibble {

struct StoredLinear {
  QuantizedWeights codes;  // used when codes.format.bits < 16
  Matrix<float> values;    // used otherwise
  QuantizedWeights tail;   // columns behind the codes, or none
  std::vector<float> bias;
  std::vector<int32_t> gather;  // of the input, or empty

  void SetRounded(Rounded rounded);
  // `input` as planned; its permutation is the linear's own.
  PackedLinear View(const InputSpec& input) const;
};

struct StoredLayer {
  ByRole<StoredLinear> linears;
  std::vector<float> attention_norm, mlp_norm;

  StoredLinear& operator[](Role role) { return linears[role]; }
  const StoredLinear& operator[](Role role) const { return linears[role]; }

  // Borrowing views of everything, inputs as planned for `layer`; activations stay at 16 bits
  // unless quantized_activations.
  LayerWeights View(const Plan& plan, int64_t layer, bool quantized_activations) const;
};

// fp32 copies of a layer; no rounding.
StoredLayer StoreFloats(const FloatLayer& layer);
// The same of what the plan leaves at 16 bits.
StoredLayer StoreUnquantized(const FloatLayer& layer, const Plan& plan, int64_t index);

// Empty vectors give a view without data.
TensorView FloatView(const std::vector<float>& values, std::vector<int64_t> shape);

}  // namespace nibble
