// SPDX-License-Identifier: Apache-2.0
// The choice of the kernel that runs a product, by the formats of its operands and the size of its
// batch. Every machine has one table of kernels, which makes this choice; `inspect --kernels`,
// docs/kernels.md and the parity tests read it too.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/packed_linear.h"

namespace nibble {

// The operands of W x: W [rows, cols], x [tokens, cols].
struct ProductFormat {
  FormatSpec weights, activations;
  int64_t cols = 0;
  bool with_tail = false;  // a tail's product is added to it
};

// The product of a linear's columns in front of its tail, and that of the tail.
ProductFormat MainProduct(const PackedLinear& linear);
ProductFormat TailProduct(const PackedLinear& linear);

struct KernelUse {
  std::string_view name;  // "amx_gemm_u8s8"
  // A text for people: what the kernel does instead of multiplying the numbers as they are stored;
  // empty if it multiplies those.
  std::string instead;
};

// What a kernel reads of weights: codes of `bits` bits (32: decoded values), a second level of
// scales, and of 2:4 sparse ones only what is stored.
struct KernelReads {
  int bits;
  bool levels = false, sparse = false;
};
// KernelUse::instead of a kernel.
std::string InsteadText(const ProductFormat& product, const KernelReads& reads);

using KernelChooser = std::function<KernelUse(const ProductFormat& product, int64_t tokens)>;

// A kernel and the fewest tokens that it takes; it runs up to the next range's first_tokens.
struct KernelRange {
  int64_t first_tokens;
  KernelUse use;
};
std::vector<KernelRange> KernelRanges(const KernelChooser& choose, const ProductFormat& product);

// One product of each kind that a plan can ask for.
std::span<const ProductFormat> ProductFormats();

// The kernels of one machine; EveryMachine lists all that this program was built for, whichever it
// runs on.
struct MachineKernels {
  std::string name;  // "cpu, avx2", "cuda, compute capability 9"
  KernelChooser choose;
};
std::vector<MachineKernels> EveryMachine();

}  // namespace nibble
