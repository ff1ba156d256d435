// SPDX-License-Identifier: Apache-2.0
// The operations that quantization needs besides the ops of a forward pass. Where a backend does
// not offer one, quantize/ does the work with BLAS and LAPACK (host_gptq.h, host_math.h).
#pragma once

#include <memory>

#include "compute/dense_math.h"
#include "compute/gptq_math.h"

namespace nibble {

class MathServices {
 public:
  virtual ~MathServices() = default;

  // Calibration and GPTQ, in the backend's memory, of the linears that share an input of this
  // width; null where BLAS and LAPACK are as fast. The result must not outlive the backend.
  virtual std::unique_ptr<GptqMath> MakeGptq(int64_t) { return nullptr; }
  // The operations for learning a rotation or scales; null and lifetime as for MakeGptq.
  virtual std::unique_ptr<DenseMath> MakeDense() { return nullptr; }
  // sum [width, width] += left^T right of fp32 [tokens, width], which may be rounded to bf16, in
  // fp32 sums: the Hessians of calibration, on machines without MakeGptq. Where left == right,
  // values above the diagonal have no meaning. Returns false, having done nothing, where BLAS is as
  // fast.
  virtual bool AddGram(const float*, const float*, int64_t, int64_t, double*) { return false; }
};

}  // namespace nibble
