// SPDX-License-Identifier: Apache-2.0
#include "quantize/set_rounder.h"

namespace nibble {

SetRounder::SetRounder(Backend& backend, int64_t width, const GptqOptions& options)
    : options_(options),
      device_(backend.MakeGptq(width)),
      hessian_(backend, device_ ? 0 : width),
      correction_(backend, device_ || options.gptaq == 0 ? 0 : width) {}

void SetRounder::Add(const float* x, const float* exact, int64_t tokens) {
  if (device_) return device_->Add(x, exact, tokens);
  hessian_.Add(x, x, tokens);
  if (exact == nullptr) return;
  difference_.assign(exact, exact + tokens * hessian_.sum().cols);
  for (size_t i = 0; i < difference_.size(); ++i) difference_[i] -= x[i];
  correction_.Add(difference_.data(), x, tokens);
}

Rounded SetRounder::Round(const Matrix<double>& w, const FormatSpec& format,
                          const FormatSpec& tail) {
  if (!device_) {
    const Matrix<double>* correction = options_.gptaq > 0 ? &correction_.sum() : nullptr;
    GptqOptions options = options_;
    options.tail.weights = tail;
    return RoundGptq(w, hessian_.sum(), correction, format, options);
  }
  if (!rounding_) rounding_.emplace(*device_, options_);
  return rounding_->Round(w, format, tail);
}

}  // namespace nibble
