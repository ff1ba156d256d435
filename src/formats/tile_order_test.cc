// SPDX-License-Identifier: Apache-2.0
// The tile order against its definition, code by code.
#include "formats/tile_order.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "formats/packed_weights_testing.h"

namespace nibble {
namespace {

// The unsigned code of output n and input k in panels of `bits` wide codes.
int CodeAt(const std::vector<uint8_t>& tiles, const TileOrder& order, int64_t n, int64_t k) {
  const int64_t step = 32 / order.bits;
  const int64_t line = n / 16 * order.panel_bytes() + k / step * 64, at = n % 16 * 4 + k % 4;
  const int byte = tiles[static_cast<size_t>(line + at)];
  if (order.bits == 8) return byte;
  return k % 8 < 4 ? byte & 15 : byte >> 4;
}

void ExpectTileOrder(Rng& rng, int bits, int64_t rows, int64_t cols) {
  SCOPED_TRACE(fmt::format("{} bits, {} x {}", bits, rows, cols));
  const int half = 1 << (bits - 1);
  Matrix<int8_t> codes(rows, cols);
  PlaneVectors w = {.format = {.bits = bits}, .rows = rows, .cols = cols};
  const int64_t row_bytes = PackedBytes(cols, bits);
  w.codes.resize(static_cast<size_t>(rows * row_bytes));
  for (int64_t n = 0; n < rows; ++n) {
    for (int8_t& code : codes.row(n)) {
      code =
          static_cast<int8_t>(static_cast<int>(rng.Below(static_cast<uint64_t>(2 * half))) - half);
    }
    PackCodes(codes.row(n).data(), cols, bits, w.codes.data() + n * row_bytes);
  }
  const PackedWeights view = View(w);
  const TileOrder order(view);
  ASSERT_EQ(order.panels % 2, 0);
  ASSERT_EQ(order.padded_cols % 64, 0);
  std::vector<uint8_t> tiles(static_cast<size_t>(order.bytes()), 0x5A);
  PackTiles(view, tiles.data());
  for (int64_t n = 0; n < order.panels * 16; ++n) {
    for (int64_t k = 0; k < order.padded_cols; ++k) {
      const int code = n < rows && k < cols ? codes.row(n)[static_cast<size_t>(k)] : 0;
      ASSERT_EQ(CodeAt(tiles, order, n, k), code + (order.bits == 4 ? 8 : 128)) << n << ", " << k;
    }
  }
}

TEST(TileOrderTest, EveryCodeIsWhereTheKernelsReadIt) {
  Rng rng(1);
  for (int bits = 2; bits <= 8; ++bits) {
    for (const int64_t rows : {1, 16, 31, 32, 33, 100}) {
      for (const int64_t cols : {1, 7, 32, 63, 64, 65, 96, 128, 333}) {
        ExpectTileOrder(rng, bits, rows, cols);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TileOrderTest, CodesOfALatticeStayWhole) {
  Rng rng(2);
  for (const int bits : {2, 3, 4}) {
    for (const int64_t cols : {8, 64, 104, 320}) {
      const int64_t rows = 33, codes = cols / 8;
      PlaneVectors w = {
          .format = {.bits = bits, .codebook = Codebook::kE8p}, .rows = rows, .cols = cols};
      for (int64_t i = 0; i < rows * codes * bits; ++i) {
        w.codes.push_back(static_cast<uint8_t>(rng.Below(256)));
      }
      const PackedWeights view = View(w);
      const TileOrder order(view);
      ASSERT_EQ(order.bits, bits);
      std::vector<uint8_t> tiles(static_cast<size_t>(order.bytes()), 0x5A);
      PackTiles(view, tiles.data());
      // [panel][k / 32][byte][16 outputs][4 codes]
      for (int64_t at = 0; at < order.bytes(); ++at) {
        const int64_t block = at / (64 * bits), byte = at / 64 % bits;
        const int64_t n = block / (order.padded_cols / 32) * 16 + at / 4 % 16;
        const int64_t code = block % (order.padded_cols / 32) * 4 + at % 4;
        const bool is_padding = n >= rows || code >= codes;
        ASSERT_EQ(tiles[static_cast<size_t>(at)],
                  is_padding ? 0 : w.codes[static_cast<size_t>((n * codes + code) * bits + byte)])
            << at;
      }
    }
  }
}

// The example of docs/checkpoint_format.md.
TEST(TileOrderTest, WorkedExample) {
  PlaneVectors w = {.format = {.bits = 4}, .rows = 1, .cols = 8};
  w.codes = {0x93, 0x01, 0xe5, 0x07};  // 3 -7 1 0 5 -2 7 0
  const PackedWeights view = View(w);
  std::vector<uint8_t> tiles(static_cast<size_t>(TileOrder(view).bytes()));
  PackTiles(view, tiles.data());
  EXPECT_EQ(std::vector<uint8_t>(tiles.begin(), tiles.begin() + 5),
            (std::vector<uint8_t>{0xdb, 0x61, 0xf9, 0x88, 0x88}));
}

}  // namespace
}  // namespace nibble
