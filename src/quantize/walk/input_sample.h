// SPDX-License-Identifier: Apache-2.0
// Some inputs of linears, for searches that try many roundings of the weights.
#pragma once

#include <span>
#include <vector>

#include "quantize/walk/stream.h"

namespace nibble {

// Tokens of a sample, and those of an expert's, of which a layer may have more than a hundred.
inline constexpr int64_t kSampledTokens = 512, kSampledOfExpert = 128;

struct InputSample {
  Matrix<double> rows;           // [tokens, K], about as many of each window, evenly spread
  std::vector<double> absolute;  // [K]: sum of |x| over all tokens of all windows
  int64_t tokens = 0;            // of all windows
};

// The inputs of a set in front of which all windows of `stream` stand, not rounded.
InputSample SampleInputs(Backend& backend, Stream& stream, LinearSet set, int64_t width);

}  // namespace nibble
