// SPDX-License-Identifier: Apache-2.0
// The weight order against its definition, code by code.
#include "backends/cuda/gemm/weight_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backends/backend_testing.h"
#include "formats/packed_weights_testing.h"

namespace nibble::cuda {
namespace {

// The signed code of output n and input k in blocks of `bits` wide codes.
int CodeAt(const std::vector<uint8_t>& ordered, const WeightOrder& order, int64_t n, int64_t k) {
  const int64_t block = n / kBlockOutputs * order.input_blocks + k / kBlockInputs;
  const int64_t row = n % kBlockOutputs, col = k % kBlockInputs;
  const int64_t thread = row / 16 * 32 + row % 8 * 4 + col % 16 / 4;
  const int64_t fragment = col / 16 * 2 + row / 8 % 2;  // register
  const int64_t word = order.bits() == 4 ? fragment / 2 : fragment;
  const int64_t at = block * order.block_bytes() + word / 4 * 2048 + thread * 16 + word % 4 * 4;
  const uint8_t byte = ordered[static_cast<size_t>(at + col % 4)];
  if (order.bits() == 8) return static_cast<int8_t>(byte);
  const int nibble = fragment % 2 == 0 ? byte & 15 : byte >> 4;
  return nibble < 8 ? nibble : nibble - 16;
}

// The step of output n for the block of input k.
int StepAt(const std::vector<uint8_t>& ordered, const WeightOrder& order, int64_t n, int64_t k) {
  const int64_t block = n / kBlockOutputs * order.input_blocks + k / kBlockInputs;
  const int64_t row = n % kBlockOutputs, thread = row / 16 * 32 + row % 8 * 4;
  const auto at =
      static_cast<size_t>(block * order.block_bytes() + 4096 + thread / 4 * 4 + row / 8 % 2 * 2);
  return ordered[at] | ordered[at + 1] << 8;
}

void ExpectWeightOrder(Rng& rng, const FormatSpec& format, int64_t rows, int64_t cols) {
  const int bits = format.bits;
  SCOPED_TRACE(fmt::format("{}, {} x {}", FormatText(format), rows, cols));
  const auto linear = RandomLinear(rng, format, rows, {.width = cols}, false);
  const PackedWeights& view = linear->packed.weights;
  Matrix<int16_t> codes(rows, cols);
  for (int64_t n = 0; n < rows; ++n) {
    UnpackCodes(view.codes.as<uint8_t>().data() + n * PackedBytes(cols, bits), cols, bits, true,
                codes.row(n).data());
  }
  const WeightOrder order(view);
  std::vector<uint8_t> ordered(static_cast<size_t>(order.bytes()), 0x5A);
  OrderWeights(view, ordered.data());
  for (int64_t n = 0; n < order.output_blocks * kBlockOutputs; ++n) {
    for (int64_t k = 0; k < order.input_blocks * kBlockInputs; ++k) {
      int code = n < rows && k < cols ? codes.row(n)[static_cast<size_t>(k)] : 0;
      if (format.second_level) {
        code = code < 0 ? code + 8 : code - 8;  // code + 8, read as two's complement
        const auto g = static_cast<size_t>(n * format.groups(cols) + k / format.group);
        const PlaneVectors& w = linear->quantized;
        const int step =
            n >= rows ? 0 : LevelStep(w.group_scales[g], w.zeros.empty() ? 0 : w.zeros[g]);
        ASSERT_EQ(StepAt(ordered, order, n, k), step) << n << ", " << k;
      }
      ASSERT_EQ(CodeAt(ordered, order, n, k), code) << n << ", " << k;
    }
  }
}

TEST(WeightOrderTest, EveryCodeIsWhereTheKernelsReadIt) {
  Rng rng(1);
  for (int bits = 2; bits <= 8; ++bits) {
    for (const int64_t rows : {1, 63, 64, 65, 200}) {
      for (const int64_t cols : {1, 7, 32, 127, 128, 129, 333}) {
        ExpectWeightOrder(rng, {.bits = bits}, rows, cols);
        if (HasFatalFailure()) return;
      }
      for (const int64_t group : {128, 384}) {
        if (bits > 4) continue;
        ExpectWeightOrder(
            rng, {.bits = bits, .symmetric = rows % 2 == 0, .group = group, .second_level = true},
            rows, 768);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The map must be one to one, and the header's formulas are its definition: thread 5, register 3.
TEST(WeightOrderTest, WorkedExample) {
  PlaneVectors w = {.format = {.bits = 4}, .rows = 64, .cols = 128};
  w.codes.resize(64 * 64);
  // Output 0 + 5 / 4 + 8 = 9, inputs 16 + 4 * (5 % 4) = 20..23: codes 1, 2, -1, -8.
  w.codes[9 * 64 + 10] = 0x21;
  w.codes[9 * 64 + 11] = 0x8F;
  const PackedWeights view = View(w);
  std::vector<uint8_t> ordered(4096), expected(4096);
  OrderWeights(view, ordered.data());
  // Word 1 of thread 5, high nibbles.
  const uint8_t word[] = {0x10, 0x20, 0xF0, 0x80};
  std::copy(word, word + 4, expected.begin() + 5 * 16 + 4);
  EXPECT_EQ(ordered, expected);
}

}  // namespace
}  // namespace nibble::cuda
