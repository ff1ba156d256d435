// SPDX-License-Identifier: Apache-2.0
// LayerNorm as RMS norms (Family::layer_norms): a stream whose mean is 0 has the same deviation and
// root mean square, whatever is rotated in it.
#pragma once

#include "formats/packed_linear.h"

namespace nibble {

// Takes the mean over a row's entries from each, in fp32.
void CentreRows(Tensor& table);
// Takes the mean from what a linear of floats adds to the residual stream, its bias included.
void CentreOutputs(PackedLinear& linear);
// bias += W norm_bias, which makes a bias where there is none.
void AddNormBias(const Tensor& norm_bias, PackedLinear& linear);

}  // namespace nibble
