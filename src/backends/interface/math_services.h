// SPDX-License-Identifier: Apache-2.0
// What quantization asks of a backend's machine besides the ops of a forward pass. What a machine
// does not offer, quantize/ does with BLAS and LAPACK (host_gptq.h, host_math.h).
#pragma once

#include <memory>

#include "backends/interface/dense_math.h"
#include "backends/interface/gptq_math.h"

namespace nibble {

class MathServices {
 public:
  virtual ~MathServices() = default;

  // Calibration and GPTQ of the linears of one input of `width` in the backend's memory; null where
  // BLAS and LAPACK are as fast. Not outliving the backend.
  virtual std::unique_ptr<GptqMath> MakeGptq(int64_t) { return nullptr; }
  // The same for learning a rotation or scales.
  virtual std::unique_ptr<DenseMath> MakeDense() { return nullptr; }
  // sum [width, width] += left^T right of fp32 [tokens, width], which may be rounded to bf16, in
  // fp32 sums: the Hessians of calibration, on machines without MakeGptq. Where left == right what
  // is above the diagonal has no meaning. False, and nothing done, where BLAS is as fast.
  virtual bool AddGram(const float*, const float*, int64_t, int64_t, double*) { return false; }
};

}  // namespace nibble
