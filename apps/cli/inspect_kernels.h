// SPDX-License-Identifier: Apache-2.0
// `nibble inspect --kernels`: which kernels run a model's linears, or every format.
#pragma once

#include "compute/backend.h"
#include "models/network.h"

namespace nibble::cli {

// "1-12 avx512_gemv_u4s8, 13+ avx512_gemm_u8s8": by tokens, the kernels that run a product.
std::string KernelsText(const KernelChooser& choose, const ProductFormat& product);
// Prints the kernels as tables for people.
void PrintKernels(const Network& net, const Backend& backend);
void PrintEveryKernel();  // of all machines that this program was built for

// The tables as JSON: {"machine", "products": [{"linear" or "weights" and "inputs", "kernels":
// "1-12 name, 13+ name", "instead": text or null}]}.
Json KernelsJson(const Network& net, const Backend& backend);
Json EveryKernelJson();  // a list of these

}  // namespace nibble::cli
