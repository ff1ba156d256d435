// SPDX-License-Identifier: Apache-2.0
#include "compute/kernels.h"

namespace nibble {
namespace {

constexpr int64_t kMaxTokens = 1024;  // kernels for more are those for many
constexpr int64_t kCols = 4096;

constexpr FormatSpec kFour = {.bits = 4}, kEight = {.bits = 8},
                     kAsym = {.bits = 4, .symmetric = false};
constexpr FormatSpec kEightAsym = {.bits = 8, .symmetric = false};
constexpr FormatSpec kGroups = {.bits = 4, .group = 128}, kSmallGroups = {.bits = 4, .group = 32},
                     kAsymGroups = {.bits = 4, .symmetric = false, .group = 128};

constexpr ProductFormat kFormats[] = {
    // One scale a row on either side.
    {kFour, kFour, kCols},
    {kFour, {.bits = 4, .clip = 0.8, .signed_scale = true}, kCols},
    {kFour, kEight, kCols},
    {kAsym, kEightAsym, kCols},
    {{.bits = 3}, kEightAsym, kCols},
    {kEight, kEight, kCols},
    {{.bits = 6, .symmetric = false}, kFour, kCols},
    {{.bits = 4, .sparse = true}, kFour, kCols},
    {{.bits = 8, .sparse = true}, kEightAsym, kCols},
    {{.bits = 3, .sparse = true}, {.bits = 16}, kCols},
    {{.bits = 8, .symmetric = false, .sparse = true}, kEightAsym, kCols},
    {{.bits = 2, .codebook = Codebook::kE8p}, kEight, kCols},
    {{.bits = 3, .codebook = Codebook::kE8p}, kEightAsym, kCols},
    {{.bits = 4, .codebook = Codebook::kE8p}, {.bits = 16}, kCols},
    {{.bits = 4, .group = 32, .codebook = Codebook::kE2m1}, kEight, kCols},
    {{.bits = 4, .codebook = Codebook::kE2m1}, kEightAsym, kCols},
    {{.bits = 4, .group = 32, .codebook = Codebook::kE2m1}, {.bits = 16}, kCols},
    {{.bits = 4, .group = 64, .codebook = Codebook::kE2m1},
     {.bits = 8, .symmetric = false, .group = 64},
     kCols},
    // Two levels of scales.
    {{.bits = 4, .group = 128, .second_level = true}, kEight, kCols},
    {{.bits = 4, .symmetric = false, .group = 128, .second_level = true}, kEightAsym, kCols},
    {{.bits = 3, .symmetric = false, .group = 256, .second_level = true}, kFour, kCols},
    {{.bits = 4, .symmetric = false, .group = 64, .second_level = true}, kEight, kCols},
    {{.bits = 4, .group = 32, .second_level = true}, kEight, kCols},
    // Groups.
    {kGroups, kGroups, kCols},
    {kGroups, kEight, kCols},
    {kAsymGroups, kAsymGroups, kCols},
    {kFour, kGroups, kCols},
    {kSmallGroups, kSmallGroups, kCols},
    {{.bits = 4, .symmetric = false, .group = 64}, kEightAsym, kCols},
    {{.bits = 4, .group = 128, .sparse = true}, kEight, kCols},
    {{.bits = 8, .group = 64}, kEight, kCols},
    {{.bits = 8, .symmetric = false, .group = 128}, kEight, kCols},
    {kEight, {.bits = 8, .symmetric = false, .group = 256}, kCols},
    // Weights alone, and nothing at all.
    {kFour, {.bits = 16}, kCols},
    {{.bits = 4, .symmetric = false, .group = 64}, {.bits = 16}, kCols},
    {{.bits = 2, .group = 64}, {.bits = 16}, kCols},
    {kAsym, {.bits = 16}, kCols},
    {{.bits = 8, .symmetric = false}, {.bits = 16}, kCols},
    {{.bits = 8, .group = 128}, {.bits = 16}, kCols},
    {{.bits = 4, .symmetric = false, .group = 128, .second_level = true}, {.bits = 16}, kCols},
    {{.bits = 16}, {.bits = 16}, kCols},
    {{.bits = 32}, {.bits = 32}, kCols},
    {{.bits = 16}, kFour, kCols},
};

}  // namespace

ProductFormat MainProduct(const PackedLinear& linear) {
  return {linear.weights.format, linear.input.activations, linear.weights.cols,
          linear.input.tail_width > 0};
}

ProductFormat TailProduct(const PackedLinear& linear) {
  return {linear.tail.format, linear.input.tail_activations, linear.tail.cols};
}

std::string InsteadText(const ProductFormat& product, const KernelReads& reads) {
  const FormatSpec &w = product.weights, &a = product.activations;
  if (reads.bits > 8) {
    return w.quantized() ? "weights decoded" : a.quantized() ? "inputs decoded" : "";
  }
  std::vector<std::string> parts;
  if (w.second_level && !reads.levels) {
    parts.push_back("two levels of scales as codes of 8 bits");
  } else if (w.bits != reads.bits) {
    parts.push_back(fmt::format("codes of {} bits", reads.bits));
  }
  if (w.sparse && !reads.sparse) parts.push_back("zeros of 2:4 stored");
  if (a.bits == 16) parts.push_back("inputs as two planes of 8 bits");
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<KernelRange> KernelRanges(const KernelChooser& choose, const ProductFormat& product) {
  std::vector<KernelRange> ranges;
  for (int64_t tokens = 1; tokens <= kMaxTokens; ++tokens) {
    const KernelUse use = choose(product, tokens);
    if (ranges.empty() || ranges.back().use.name != use.name) ranges.push_back({tokens, use});
  }
  return ranges;
}

std::span<const ProductFormat> ProductFormats() {
  return kFormats;
}

}  // namespace nibble
