// SPDX-License-Identifier: Apache-2.0
// Sums over the calibration inputs of some linears, then GPTQ of each: on the backend's device, or
// with BLAS and LAPACK.
#pragma once

#include <memory>
#include <optional>

#include "quantize/gram.h"
#include "quantize/round_device.h"

namespace nibble {

class SetRounder {
 public:
  // options.tail is that of the input; formats of its weights are given with each matrix.
  SetRounder(Backend& backend, int64_t width, const GptqOptions& options);

  // x, the inputs as the quantized network sees them, and (with options.gptaq > 0) as they would be
  // without rounding; fp32 [tokens, width] in the backend's memory.
  void Add(const float* x, const float* exact, int64_t tokens);

  // After all calls of Add.
  Rounded Round(const Matrix<double>& w, const FormatSpec& format, const FormatSpec& tail = {});

 private:
  GptqOptions options_;
  std::unique_ptr<GptqDevice> device_;      // or
  Gram hessian_, correction_;               // these
  std::vector<float> difference_;           // [tokens, width]
  std::optional<DeviceRounding> rounding_;  // once all is added
};

}  // namespace nibble
