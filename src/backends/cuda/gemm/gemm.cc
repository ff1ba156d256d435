// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/gemm.h"

#include "base/error.h"

namespace nibble::cuda {

void CheckArguments(const GemmArguments& g) {
  NIBBLE_CHECK(g.tokens > 0 && g.rows > 0 && g.cols > 0, "{} tokens, {} x {}", g.tokens, g.rows,
               g.cols);
  const bool codes = !OfFloats(g.w_kind), plain = g.w_kind == WeightKind::kPlain;
  NIBBLE_CHECK(!codes || (g.stride % 128 == 0 && g.stride >= g.cols), "stride {}, {} columns",
               g.stride, g.cols);
  NIBBLE_CHECK(g.y_stride >= g.rows, "stride {}, {} rows", g.y_stride, g.rows);
  NIBBLE_CHECK(!codes || (g.a_bits >= 2 && g.a_bits <= 8) || (g.planes() && !plain), "{} bits",
               g.a_bits);
  NIBBLE_CHECK(!g.planes() || !codes || (g.x_zero_offsets == nullptr && g.x_group == 0));
  const bool with_sums = g.w_zeros != nullptr || g.w_kind == WeightKind::kLevels;
  NIBBLE_CHECK(!with_sums || g.x_sums != nullptr);
  NIBBLE_CHECK(g.x_zero_offsets == nullptr || g.w_sums != nullptr || plain || g.x_group != 0);
  NIBBLE_CHECK(!codes || g.w_scales != nullptr || (HasGroups(g.w_kind) && g.w_block.pieces > 0));
  NIBBLE_CHECK(!HasGroups(g.w_kind) || (g.x_group % g.piece == 0 && g.w_zeros == nullptr));
  NIBBLE_CHECK(g.y_type == RealType::kFloat32 || !g.accumulate);
  NIBBLE_CHECK((g.tail.x == nullptr) == (g.tail_w == nullptr));
  if (g.up_w == nullptr) return;
  NIBBLE_CHECK(g.y_type == RealType::kBfloat16 && g.rows % 8 == 0 && g.y_stride % 8 == 0);
  NIBBLE_CHECK(g.w_zeros == nullptr && g.x_zero_offsets == nullptr && g.bias == nullptr);
}

bool CanJoin(const GemmArguments& a, const GemmArguments& b) {
  const auto alike = [](const auto* x, const auto* y) { return (x == nullptr) == (y == nullptr); };
  return a.x == b.x && a.tokens == b.tokens && a.cols == b.cols && a.w_kind == b.w_kind &&
         a.piece == b.piece && a.w_block == b.w_block && a.y_type == b.y_type &&
         a.accumulate == b.accumulate && a.tail == b.tail && alike(a.w_scales, b.w_scales) &&
         alike(a.w_zeros, b.w_zeros) && alike(a.bias, b.bias);
}

GemmArguments Join(std::span<const GemmArguments> products) {
  CheckJoined(products);
  GemmArguments g = products.front();
  NIBBLE_CHECK(products.size() == 1 || g.addend == nullptr, "there is room for one");
  for (const GemmArguments& other : products.subspan(1)) g.joined[g.joins++] = other.product(0);
  return g;
}

void CheckJoined(std::span<const GemmArguments> products) {
  NIBBLE_CHECK(!products.empty() && products.size() <= kMaxJoined, "{}", products.size());
  for (const GemmArguments& g : products) {
    CheckArguments(g);
    NIBBLE_CHECK(CanJoin(products.front(), g));
  }
}

}  // namespace nibble::cuda
