// SPDX-License-Identifier: Apache-2.0
// Which kernel runs a product, by the formats of its operands and the size of its batch. Every
// machine has one table of kernels, which chooses them; `inspect --kernels`, docs/kernels.md and
// the parity tests ask it too.
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
  FormatSpec weights, activation;
  int64_t cols = 0;
};

// Of a linear's columns in front of its tail, and of the tail.
ProductFormat MainProduct(const PackedLinear& linear);
ProductFormat TailProduct(const PackedLinear& linear);

struct KernelUse {
  std::string_view name;  // "amx_gemm_u8s8"
  // What it does instead of multiplying the numbers as they are stored, for people; or empty.
  std::string instead;
};

// The second of these for a kernel that reads codes of `bits` (32: decoded values), with a second
// level of scales or without.
std::string InsteadText(const ProductFormat& product, int bits, bool second_level);

using KernelChooser = std::function<KernelUse(const ProductFormat& product, int64_t tokens)>;

// A kernel and the fewest tokens that it takes; it runs up to those of the next.
struct KernelRange {
  int64_t first_tokens;
  KernelUse use;
};
std::vector<KernelRange> KernelRanges(const KernelChooser& choose, const ProductFormat& product);

// One of each kind that a plan can ask for.
std::span<const ProductFormat> ProductFormats();

// Every machine that this program was built for, whichever it runs on.
struct MachineKernels {
  std::string name;  // "cpu, avx2", "cuda, compute capability 9"
  KernelChooser choose;
};
std::vector<MachineKernels> EveryMachine();

}  // namespace nibble
