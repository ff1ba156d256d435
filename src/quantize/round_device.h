// SPDX-License-Identifier: Apache-2.0
// RoundGptq where a device holds the Hessian: the same steps, so the same codes up to the order of
// fp64 sums.
#pragma once

#include <vector>

#include "backends/interface/gptq_device.h"
#include "quantize/gptq_steps.h"

namespace nibble {

class DeviceRounding {
 public:
  // Factors what `device` has summed, with as much damping as that takes.
  DeviceRounding(GptqDevice& device, const GptqOptions& options);

  // tail: the format of the last columns, if the options set some apart.
  Rounded Round(const Matrix<double>& w, const FormatSpec& format, const FormatSpec& tail) const;

 private:
  GptqDevice& device_;
  GptqOptions options_;
  std::vector<int64_t> unseen_;  // columns whose input was 0 in all of calibration
  double damp_;
};

}  // namespace nibble
