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

// The 16-bit number of output n for the piece of input k, and the byte of its start.
struct Scale {
  int number = 0, start = 0;
};
Scale ScaleAt(const std::vector<uint8_t>& ordered, const WeightOrder& order, int64_t n, int64_t k) {
  const int64_t block = n / kBlockOutputs * order.input_blocks + k / kBlockInputs;
  const int64_t row = n % kBlockOutputs, thread = row / 16 * 32 + row % 8 * 4, h = row / 8 % 2;
  const int64_t pieces = order.scales.pieces, piece = k % kBlockInputs * pieces / kBlockInputs;
  const int64_t scales = block * order.block_bytes() + 64 * 128 * order.bits() / 8;
  const auto at = static_cast<size_t>(scales + thread / 4 * 4 * pieces + 4 * piece + 2 * h);
  Scale scale = {.number = ordered[at] | ordered[at + 1] << 8};
  if (order.scales.zeros) {
    const int64_t pitch = pieces == 4 ? 8 : 4;
    scale.start =
        ordered[static_cast<size_t>(scales + 128 * pieces + thread / 4 * pitch + 2 * piece + h)];
  }
  return scale;
}

// The scale that ScaleAt must find.
Scale WantedScale(const PlaneVectors& w, const WeightOrder& order, int64_t n, int64_t k) {
  if (n >= w.rows) return {};
  const int64_t groups = w.format.groups(w.cols);
  const auto g = static_cast<size_t>(n * groups + std::min(k / w.format.group, groups - 1));
  const int zero = w.zeros.empty() ? 0 : w.zeros[g];
  if (w.format.second_level) return {.number = LevelStep(w.group_scales[g], zero)};
  return {.number = w.scales_f16[g], .start = order.scales.zeros ? 120 - zero : 0};
}

void ExpectWeightOrder(Rng& rng, const FormatSpec& format, int64_t rows, int64_t cols,
                       int piece = 128) {
  const int bits = format.bits;
  SCOPED_TRACE(fmt::format("{}, {} x {} by {}", FormatText(format), rows, cols, piece));
  const auto linear = RandomLinear(rng, format, rows, {.width = cols}, false);
  const PackedWeights& view = linear->packed.weights;
  Matrix<int16_t> codes(rows, cols);
  for (int64_t n = 0; n < rows; ++n) {
    UnpackCodes(view.codes.as<uint8_t>().data() + n * PackedBytes(cols, bits), cols, bits, true,
                codes.row(n).data());
  }
  const bool nibbles = bits <= 4;
  const WeightKind kind = format.second_level ? WeightKind::kLevels
                          : format.group != 0
                              ? nibbles ? WeightKind::kNibbleGroups : WeightKind::kByteGroups
                          : nibbles ? WeightKind::kNibbles
                                    : WeightKind::kBytes;
  const WeightOrder order(view, kind, piece);
  ASSERT_EQ(order.bits(), nibbles ? 4 : 8);
  std::vector<uint8_t> ordered(static_cast<size_t>(order.bytes()), 0x5A);
  OrderWeights(view, order, ordered.data());
  const bool is_unsigned = format.second_level || order.scales.zeros;
  for (int64_t n = 0; n < order.output_blocks * kBlockOutputs; ++n) {
    for (int64_t k = 0; k < order.input_blocks * kBlockInputs; ++k) {
      int code = n < rows && k < cols ? codes.row(n)[static_cast<size_t>(k)] : 0;
      if (is_unsigned) code = code < 0 ? code + 8 : code - 8;  // code + 8, as two's complement
      ASSERT_EQ(CodeAt(ordered, order, n, k), code) << n << ", " << k;
      if (order.scales.pieces == 0) continue;
      const Scale scale = ScaleAt(ordered, order, n, k);
      const Scale wanted = WantedScale(linear->quantized, order, n, k);
      ASSERT_EQ(scale.number, wanted.number) << n << ", " << k;
      ASSERT_EQ(scale.start, wanted.start) << n << ", " << k;
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
    }
  }
}

TEST(WeightOrderTest, EveryCodewordIsWhereTheKernelsReadIt) {
  Rng rng(4);
  for (const int bits : {2, 3, 4}) {
    const WeightKind kind = CodewordKind(bits);
    ASSERT_EQ(CodewordBits(kind), bits);
    const int64_t rows = 65, cols = 264, row_bytes = cols / 8 * bits;
    const auto linear =
        RandomLinear(rng, {.bits = bits, .codebook = Codebook::kE8p}, rows, {.width = cols}, false);
    const PackedWeights& view = linear->packed.weights;
    const WeightOrder order(view, kind);
    ASSERT_EQ(order.bytes(), 2 * 3 * 64 * 128 * bits / 8);
    std::vector<uint8_t> ordered(static_cast<size_t>(order.bytes()), 0x5A);
    OrderWeights(view, order, ordered.data());
    for (int64_t n = 0; n < 128; ++n) {
      for (int64_t codeword = 0; codeword < 48; ++codeword) {
        const int64_t block = (n / 64 * 3 + codeword / 16) * order.block_bytes();
        const int64_t t = n % 64 / 16 * 32 + n % 8 * 4 + codeword % 4, h = n / 8 % 2;
        const int64_t at = block + 16 * t + 4 * (codeword % 16 / 4) + 2 * h;
        std::vector<int64_t> places = {at, at + 1};  // of the code's bytes, the uppermost first
        if (bits == 4) places.insert(places.begin(), {at + 2048, at + 2049});
        if (bits == 3) places.insert(places.begin(), block + 2048 + (at - block) / 2);
        for (int64_t i = 0; i < bits; ++i) {
          const bool exists = n < rows && codeword < cols / 8;
          const uint8_t* packed = view.codes.as<uint8_t>().data() + n * row_bytes + codeword * bits;
          ASSERT_EQ(ordered[static_cast<size_t>(places[static_cast<size_t>(i)])],
                    exists ? packed[i] : 0)
              << bits << " bits, " << n << ", " << codeword;
        }
      }
    }
  }
}

// The code of output n and input k in blocks of sparse codes: 0 where none is stored.
int SparseCodeAt(const std::vector<uint8_t>& ordered, const WeightOrder& order, int64_t n,
                 int64_t k) {
  const int64_t block = (n / 64 * order.input_blocks + k / 128) * order.block_bytes();
  const int64_t row = n % 64, s = k % 128 / 64, four = k % 64 / 4;
  const int64_t places_of = row / 16 * 32 + row % 8 * 4 + row / 8 % 2 + four / 8 * 2;  // thread
  const int64_t at = block + 64 * 64 * order.bits() / 8 + 8 * places_of + 4 * s + four % 8 / 2;
  const int places = ordered[static_cast<size_t>(at)] >> four % 2 * 4;
  for (int64_t i = 0; i < 2; ++i) {
    if ((places >> 2 * i & 3) != k % 4) continue;
    const int64_t stored = 2 * four + i;  // of the 32 codes of step s
    const int64_t thread = row / 16 * 32 + row % 8 * 4 + stored % 16 / 4;
    const int64_t fragment = 4 * s + stored / 16 * 2 + row / 8 % 2;
    const int64_t word = order.bits() == 4 ? fragment / 2 : fragment;
    const uint8_t byte = ordered[static_cast<size_t>(block + word / 4 * 2048 + thread * 16 +
                                                     word % 4 * 4 + stored % 4)];
    if (order.bits() == 8) return static_cast<int8_t>(byte);
    const int nibble = fragment % 2 == 0 ? byte & 15 : byte >> 4;
    return nibble < 8 ? nibble : nibble - 16;
  }
  return 0;
}

TEST(WeightOrderTest, EverySparseCodeIsWhereTheKernelsReadIt) {
  Rng rng(5);
  for (int bits = 2; bits <= 8; ++bits) {
    const bool nibbles = bits <= 4;
    const WeightKind kind = nibbles ? WeightKind::kSparseNibbles : WeightKind::kSparseBytes;
    for (const int64_t rows : {1, 65}) {
      for (const int64_t cols : {8, 128, 136, 328}) {
        SCOPED_TRACE(fmt::format("{} bits, {} x {}", bits, rows, cols));
        const FormatSpec format = {.bits = bits, .sparse = true};
        const auto linear = RandomLinear(rng, format, rows, {.width = cols}, false);
        const PackedWeights& view = linear->packed.weights;
        const WeightOrder order(view, kind);
        ASSERT_EQ(order.block_bytes(), nibbles ? 3072 : 5120);
        std::vector<uint8_t> ordered(static_cast<size_t>(order.bytes()), 0x5A);
        OrderWeights(view, order, ordered.data());
        for (int64_t n = 0; n < order.output_blocks * kBlockOutputs; ++n) {
          std::vector<int16_t> codes(static_cast<size_t>(cols));
          if (n < rows) UnpackRow(view, n, codes);
          codes.resize(static_cast<size_t>(order.input_blocks * kBlockInputs));
          for (int64_t k = 0; k < order.input_blocks * kBlockInputs; ++k) {
            ASSERT_EQ(SparseCodeAt(ordered, order, n, k), codes[static_cast<size_t>(k)])
                << n << ", " << k;
          }
        }
      }
    }
  }
}

TEST(WeightOrderTest, EveryScaleIsWhereTheKernelsReadIt) {
  Rng rng(2);
  struct Case {
    int64_t group, cols;
    int piece;
  };
  constexpr Case kCases[] = {{128, 768, 128}, {384, 768, 128}, {64, 448, 64}, {32, 416, 32},
                             {96, 192, 32},   {128, 384, 64},  {192, 384, 64}};
  for (const Case& c : kCases) {
    for (const int64_t rows : {1, 64, 200}) {
      for (const bool symmetric : {true, false}) {
        const FormatSpec groups = {.bits = 4, .symmetric = symmetric, .group = c.group};
        FormatSpec levels = groups, narrow = groups;
        levels.second_level = true, narrow.bits = 2;
        ExpectWeightOrder(rng, groups, rows, c.cols, c.piece);
        ExpectWeightOrder(rng, levels, rows, c.cols, c.piece);
        ExpectWeightOrder(rng, narrow, rows, c.cols, c.piece);
        ExpectWeightOrder(rng, {.bits = 8, .group = c.group}, rows, c.cols, c.piece);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(WeightOrderTest, ZerosFarFromAllCodesAreRefused) {
  Rng rng(3);
  const FormatSpec format = {.bits = 4, .symmetric = false, .group = 128};
  PlaneVectors w = RandomPlanes(rng, format, 64, 256, 8);
  w.zeros[5] = 121;
  const PackedWeights view = View(w);
  const WeightOrder order(view, WeightKind::kNibbleGroups);
  std::vector<uint8_t> ordered(static_cast<size_t>(order.bytes()));
  EXPECT_THROW(OrderWeights(view, order, ordered.data()), Error);
  w.zeros[5] = -120;
  OrderWeights(view, order, ordered.data());
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
  OrderWeights(view, WeightOrder(view, WeightKind::kNibbles), ordered.data());
  // Word 1 of thread 5, high nibbles.
  const uint8_t word[] = {0x10, 0x20, 0xF0, 0x80};
  std::copy(word, word + 4, expected.begin() + 5 * 16 + 4);
  EXPECT_EQ(ordered, expected);
}

}  // namespace
}  // namespace nibble::cuda
