// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/input_sample.h"

#include <algorithm>
#include <cmath>

namespace nibble {

InputSample SampleInputs(Backend& backend, Stream& stream, LinearSet set, int64_t width) {
  InputSample sample;
  sample.absolute.resize(static_cast<size_t>(width));
  const int64_t most = set.expert < 0 ? kSampledTokens : kSampledOfExpert;
  const int64_t each = (most + stream.windows() - 1) / stream.windows();
  for (int64_t w = 0; w < stream.windows(); ++w) {
    const auto [values, tokens] = stream.Input(set, w, {.bits = 32});
    if (tokens == 0) continue;
    const float* const x = backend.Read(values, tokens * width);
    for (int64_t i = 0; i < tokens * width; ++i) {
      sample.absolute[static_cast<size_t>(i % width)] += std::fabs(x[i]);
    }
    const int64_t count = std::min(each, tokens);
    for (int64_t t = 0; t < count; ++t) {
      const float* const row = x + t * tokens / count * width;
      sample.rows.data.insert(sample.rows.data.end(), row, row + width);
    }
    sample.rows.rows += count;
    sample.tokens += tokens;
  }
  sample.rows.cols = width;
  return sample;
}

}  // namespace nibble
