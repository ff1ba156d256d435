// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/kernel_table.h"

#include <algorithm>
#include <numeric>

#include "backends/cuda/gemm/gemm_decode.h"
#include "backends/cuda/gemm/gemm_halves.h"
#include "backends/cuda/gemm/gemm_plain.h"
#include "backends/cuda/gemm/gemm_sm80.h"
#include "backends/cuda/gemm/gemm_sm90.h"
#include "backends/cuda/gemm/gemm_sm90_groups.h"
#include "backends/cuda/gemm/gemm_sm90_tails.h"
#include "backends/cuda/gemm/weight_order.h"

namespace nibble::cuda {
namespace {

template <auto gemm>
void Joined(std::span<const GemmArguments> products, cudaStream_t stream) {
  gemm(Join(products), stream);
}

template <auto gemm>
void Each(std::span<const GemmArguments> products, cudaStream_t stream) {
  for (const GemmArguments& g : products) gemm(g, stream);
}

constexpr auto kNibbles = WeightKind::kNibbles, kBytes = WeightKind::kBytes;
constexpr auto kLevels = WeightKind::kLevels, kNibbleGroups = WeightKind::kNibbleGroups;
constexpr auto kByteGroups = WeightKind::kByteGroups;
constexpr auto kSparseNibbles = WeightKind::kSparseNibbles, kSparseBytes = WeightKind::kSparseBytes;
constexpr auto kCodewords2 = WeightKind::kCodewords2, kCodewords3 = WeightKind::kCodewords3,
               kCodewords4 = WeightKind::kCodewords4;

// clang-format off
constexpr Kernel kTable[] = {
    // name                     capability  weights              a_bits  rows              run                   joins       gates   run_experts
    {"gemm_decode_s4s8",        9, 9,       kNibbles,            16,     kMaxLaunchRows,   GemmDecode,           kMaxJoined, false,  GemmDecodeExperts},
    {"gemm_decode_s8s8",        9, 9,       kBytes,              16,     kMaxLaunchRows,   GemmDecode,           kMaxJoined, false,  GemmDecodeExperts},
    {"gemm_decode_s4s8_levels", 9, 9,       kLevels,             16,     kMaxLaunchRows,   GemmDecode,           kMaxJoined, false,  GemmDecodeExperts},
    {"gemm_decode_p2s8",        9, 9,       kCodewords2,         16,     kMaxLaunchRows,   GemmDecodeCodewords,  kMaxJoined},
    {"gemm_decode_p3s8",        9, 9,       kCodewords3,         16,     kMaxLaunchRows,   GemmDecodeCodewords,  kMaxJoined},
    {"gemm_decode_p4s8",        9, 9,       kCodewords4,         16,     kMaxLaunchRows,   GemmDecodeCodewords,  kMaxJoined},
    {"gemm_decode_s4s8_sparse", 9, 9,       kSparseNibbles,      16,     kMaxLaunchRows,   GemmDecodeSparse,     kMaxJoined},
    {"gemm_decode_s8s8_sparse", 9, 9,       kSparseBytes,        16,     kMaxLaunchRows,   GemmDecodeSparse,     kMaxJoined},
    {"gemm_decode_s4s8_groups", 9, 9,       kNibbleGroups,       16,     2*kMaxLaunchRows, GemmDecodeGroups,     kMaxJoined, false,  GemmDecodeExperts},
    {"gemm_decode_s8s8_groups", 9, 9,       kByteGroups,         16,     2*kMaxLaunchRows, GemmDecodeGroups,     kMaxJoined, false,  GemmDecodeExperts},
    {"gemm_sm90_s4s8",          9, 9,       kNibbles,            16,     0,                Joined<GemmSm90>,     kMaxJoined, true,   Each<GemmSm90>},
    {"gemm_sm90_s8s8",          9, 9,       kBytes,              16,     0,                Joined<GemmSm90>,     kMaxJoined, true,   Each<GemmSm90>},
    {"gemm_sm90_s4s8_levels",   9, 9,       kLevels,             16,     0,                Joined<GemmSm90>,     kMaxJoined, true,   Each<GemmSm90>},
    {"gemm_sm90_s4s8_sparse",   9, 9,       kSparseNibbles,      16,     0,                Joined<GemmSm90Sparse>, kMaxJoined, true},
    {"gemm_sm90_s8s8_sparse",   9, 9,       kSparseBytes,        16,     0,                Joined<GemmSm90Sparse>, kMaxJoined, true},
    {"gemm_sm90_p2s8",          9, 9,       kCodewords2,         16,     0,                Joined<GemmSm90Codewords>, kMaxJoined},
    {"gemm_sm90_p3s8",          9, 9,       kCodewords3,         16,     0,                Joined<GemmSm90Codewords>, kMaxJoined},
    {"gemm_sm90_p4s8",          9, 9,       kCodewords4,         16,     0,                Joined<GemmSm90Codewords>, kMaxJoined},
    {"gemm_sm90_s4s8_groups",   9, 9,       kNibbleGroups,       16,     0,                Joined<GemmSm90Groups>, kMaxJoined, true,   Each<GemmSm90Groups>},
    {"gemm_sm90_s8s8_groups",   9, 9,       kByteGroups,         16,     0,                Joined<GemmSm90Groups>, kMaxJoined, true,   Each<GemmSm90Groups>},
    {"gemm_decode_s4s8",        8, 8,       kNibbles,            16,     2*kMaxLaunchRows, GemmDecode,           kMaxJoined},
    {"gemm_decode_s8s8",        8, 8,       kBytes,              16,     2*kMaxLaunchRows, GemmDecode,           kMaxJoined},
    {"gemm_decode_s4s8_groups", 8, 8,       kNibbleGroups,       16,     2*kMaxLaunchRows, GemmDecodeGroups,     kMaxJoined},
    {"gemm_decode_s8s8_groups", 8, 8,       kByteGroups,         16,     2*kMaxLaunchRows, GemmDecodeGroups,     kMaxJoined},
    {"gemm_decode_s4s8_levels", 8, 8,       kLevels,             16,     2*kMaxLaunchRows, GemmDecode,           kMaxJoined},
    {"gemm_sm80_s4s8_levels",   8, 0,       kLevels,             16,     0,                Each<GemmSm80>},
    {"gemm_decode_p2s8",        8, 8,       kCodewords2,         16,     8,                GemmDecodeCodewords,  kMaxJoined},
    {"gemm_decode_p3s8",        8, 8,       kCodewords3,         16,     8,                GemmDecodeCodewords,  kMaxJoined},
    {"gemm_decode_p4s8",        8, 8,       kCodewords4,         16,     8,                GemmDecodeCodewords,  kMaxJoined},
    {"gemm_sm80_p2s8",          8, 0,       kCodewords2,         16,     0,                Each<GemmSm80Codewords>},
    {"gemm_sm80_p3s8",          8, 0,       kCodewords3,         16,     0,                Each<GemmSm80Codewords>},
    {"gemm_sm80_p4s8",          8, 0,       kCodewords4,         16,     0,                Each<GemmSm80Codewords>},
    {"gemm_sm80_s4s4",          8, 0,       kNibbles,            4,      0,                Each<GemmSm80>},
    {"gemm_sm80_s4s8",          8, 0,       kNibbles,            16,     0,                Each<GemmSm80>},
    {"gemm_sm80_s8s8",          8, 0,       kBytes,              16,     0,                Each<GemmSm80>},
    {"gemm_sm80_s4s4_groups",   8, 0,       kNibbleGroups,       4,      0,                Each<GemmSm80>},
    {"gemm_sm80_s4s8_groups",   8, 0,       kNibbleGroups,       16,     0,                Each<GemmSm80>},
    {"gemm_sm80_s8s8_groups",   8, 0,       kByteGroups,         16,     0,                Each<GemmSm80>},
    {"gemm_grouped",            8, 0,       WeightKind::kPlain,  8,      0,                Each<GemmGrouped>},
    {"gemm_halves",             8, 0,       WeightKind::kHalves, 16,     0,                Joined<GemmHalves>,   kMaxJoined},
    {"gemm_float",              8, 0,       WeightKind::kFloats, 32,     0,                Each<GemmFloat>},
};
// clang-format on

constexpr int kMany = 1 << 30;  // tokens

// Bits of what kernels read.
int StoredBits(WeightKind kind) {
  if (OfFloats(kind)) return 32;
  return kind == WeightKind::kPlain ? 8 : CodeBits(kind);
}

// True if a GPU has a kernel for any number of tokens.
bool Takes(int capability, WeightKind kind, int bits) {
  return std::ranges::any_of(
      kTable, [&](const Kernel& kernel) { return kernel.Runs(capability, kind, bits, kMany); });
}

// The bits of the inputs as kernels multiply them: codes of 4 are bytes where groups end inside an
// instruction for 64 inputs, or where a side has zeros.
int BitsOf(WeightKind kind, const ProductFormat& product) {
  const FormatSpec &w = product.weights, &a = product.activations;
  const bool whole = PieceOf(product) >= 64 && !w.e2m1() &&
                     (w.symmetric || w.scales(product.cols) == 1) &&
                     (a.symmetric || a.groups(product.cols) == 1);
  return kind == kNibbleGroups && !whole ? std::max(a.bits, 8) : a.bits;
}

}  // namespace

const Kernel kTailKernel = {.name = "gemm_sm90_tails",
                            .min = 9,
                            .max = 9,
                            .weights = kNibbles,  // or kBytes or kNibbleGroups
                            .a_bits = 8,
                            .max_rows = 0,
                            .run = Joined<GemmSm90Tails>,
                            .joins = kMaxJoined};

bool Kernel::Runs(int capability, WeightKind kind, int bits, int64_t tokens) const {
  return capability >= min && (max == 0 || capability <= max) && kind == weights &&
         bits <= a_bits && (max_rows == 0 || (bits == 16 ? 2 : 1) * tokens <= max_rows);
}

const Kernel& ChooseKernel(int capability, WeightKind kind, const ProductFormat& product,
                           int64_t tokens) {
  const int bits = BitsOf(kind, product);
  const auto row = std::ranges::find_if(
      kTable, [&](const Kernel& kernel) { return kernel.Runs(capability, kind, bits, tokens); });
  NIBBLE_CHECK(row != std::end(kTable), "{} tokens, {} bits", tokens, bits);
  return *row;
}

WeightKind KindOf(int capability, const ProductFormat& product) {
  const FormatSpec &w = product.weights, &a = product.activations;
  const bool planes = a.bits == 16;
  if (w.bits == 16 && planes) return WeightKind::kHalves;
  if (!w.quantized() || (!a.quantized() && !planes)) return WeightKind::kFloats;
  const bool nibbles = w.code_bits() <= 4;
  if (w.scales(product.cols) != 1 || a.groups(product.cols) != 1) {
    const bool fours = nibbles || (w.e2m1() && w.scales(product.cols) != 1);
    const WeightKind groups = fours ? kNibbleGroups : kByteGroups;
    // Kernels of groups fold zeros into 4-bit codes, but only zeros of groups, not those of whole
    // rows.
    const bool zeros = !w.symmetric && (!nibbles || w.scales(product.cols) == 1);
    if (!zeros && Takes(capability, groups, a.bits)) return groups;
    return planes ? WeightKind::kFloats : WeightKind::kPlain;
  }
  if (w.second_level) return kLevels;
  if (w.lattice()) return CodewordKind(w.bits);
  const WeightKind sparse = nibbles ? kSparseNibbles : kSparseBytes;
  // Beside dense weights a tail runs in the same launch, which saves more than zeros do.
  const bool packs = w.sparse && w.symmetric && !product.with_tail;
  if (packs && Takes(capability, sparse, a.bits)) return sparse;
  return nibbles ? kNibbles : kBytes;
}

int PieceOf(const ProductFormat& product) {
  const auto length = [&](const FormatSpec& f) {
    return f.groups(product.cols) == 1 && !f.second_level ? 0 : f.group;
  };
  return static_cast<int>(
      std::gcd(kBlockInputs, std::gcd(length(product.weights), length(product.activations))));
}

KernelUse KernelFor(int capability, const ProductFormat& product, int64_t tokens) {
  const WeightKind kind = KindOf(capability, product);
  KernelUse use = {.name = ChooseKernel(capability, kind, product, tokens).name,
                   .instead = InsteadText(product, {.bits = StoredBits(kind),
                                                    .levels = kind == kLevels,
                                                    .sparse = IsSparse(kind)})};
  const auto add = [&](std::string_view text) {
    if (!use.instead.empty()) use.instead += ", ";
    use.instead += text;
  };
  if (kind == WeightKind::kPlain || kind == WeightKind::kFloats) add("no tensor cores");
  return use;
}

}  // namespace nibble::cuda
