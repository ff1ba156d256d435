// SPDX-License-Identifier: Apache-2.0
// OpenBLAS as Nibble uses it: every call on the thread that makes it, from all threads of the pool.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace nibble {

// Must be called before Threads() threads use BLAS. OpenBLAS keeps a buffer for each call that runs
// at the same time and tries for ever where it gets none; so all buffers are made here, or an error
// is thrown.
void PrepareBlas();

// The value of OPENBLAS_CORETYPE that gives this processor faster kernels; "" where OpenBLAS chose
// well. It goes by model numbers, and takes one that it does not know for one without AVX2. It
// reads the variable while it is loaded.
std::string BetterBlasCore();

// out = factor a b + keep out, with b^T in place of b if it is `turned`; by all threads, whose
// number does not change the result.
void Multiply(const Matrix<double>& a, const Matrix<double>& b, bool turned, Matrix<double>& out,
              double factor = 1, double keep = 0);

}  // namespace nibble
