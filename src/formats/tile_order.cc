// SPDX-License-Identifier: Apache-2.0
#include "formats/tile_order.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/thread_pool.h"

namespace nibble {
namespace {

constexpr int64_t kOutputs = 16;  // of a panel
constexpr int64_t kWords = 8;     // transposed at once: 64 inputs of 4 bits

static_assert(std::endian::native == std::endian::little);

// A word of a row, 8 codes of 4 bits or 4 of 8, as a word of a panel. Two's complement becomes
// code + 8 or + 128 by flipping the sign bit.
template <int kBits>
uint32_t TileWord(uint32_t word) {
  if constexpr (kBits == 8) return word ^ 0x80808080u;
  // Nibbles 01234567 (lowest first) -> 01452367 -> 04152637.
  const uint32_t pairs = (word ^ (word >> 8)) & 0x0000FF00u;
  word ^= pairs ^ (pairs << 8);
  const uint32_t nibbles = (word ^ (word >> 4)) & 0x00F000F0u;
  return word ^ nibbles ^ (nibbles << 4) ^ 0x88888888u;
}

using Rows = std::array<const uint8_t*, kOutputs>;

// Transposes 16 rows of words, of codes in canonical order with `kBits` bits.
template <int kBits>
void PackPanel(const Rows& rows, int64_t row_bytes, uint8_t* panel) {
  for (int64_t at = 0; at < row_bytes; at += kWords * 4) {
    uint32_t block[kOutputs][kWords];
    for (size_t j = 0; j < kOutputs; ++j) {
      std::memcpy(block[j], rows[j] + at, sizeof(block[j]));
      for (uint32_t& word : block[j]) word = TileWord<kBits>(word);
    }
    for (size_t i = 0; i < kWords; ++i, panel += kOutputs * 4) {
      uint32_t line[kOutputs];
      for (size_t j = 0; j < kOutputs; ++j) line[j] = block[j][i];
      std::memcpy(panel, line, sizeof(line));
    }
  }
}

// Codes of `bits` bytes: byte b of four that follow each other is a word of output j, and behind
// the words of all outputs come those of byte b + 1.
void PackCodewords(const Rows& rows, int64_t row_bytes, int64_t bits, uint8_t* panel) {
  for (int64_t at = 0; at < row_bytes; at += 4 * bits) {
    for (int64_t byte = 0; byte < bits; ++byte) {
      for (const uint8_t* row : rows) {
        for (int64_t code = 0; code < 4; ++code) *panel++ = row[at + code * bits + byte];
      }
    }
  }
}

}  // namespace

TileOrder::TileOrder(const PackedWeights& w)
    : panels((w.rows + 31) / 32 * 2),
      padded_cols((w.cols + 63) / 64 * 64),
      bits(w.format.lattice()   ? w.format.bits
           : w.format.bits <= 4 ? 4
                                : 8) {}

void PackTiles(const PackedWeights& w, uint8_t* tiles) {
  const TileOrder order(w);
  const uint8_t* codes = w.codes.as<uint8_t>().data();
  const int64_t packed_bytes = PackedBytes(w.cols, w.format.bits);
  const int64_t row_bytes = order.panel_bytes() / kOutputs;
  // Rows that need neither other codes nor padding are read where they lie.
  const bool as_stored = w.format.bits == order.bits && !w.format.sparse;
  const bool in_place = as_stored && packed_bytes == row_bytes;
  ParallelFor(static_cast<size_t>(order.panels), [&](size_t task) {
    const auto panel = static_cast<int64_t>(task);
    std::vector<uint8_t> padded(static_cast<size_t>((in_place ? 1 : kOutputs) * row_bytes));
    Rows rows;
    for (int64_t j = 0; j < kOutputs; ++j) {
      const int64_t n = panel * kOutputs + j;
      const uint8_t* packed = codes + n * packed_bytes;
      uint8_t* row = padded.data() + (in_place ? 0 : j * row_bytes);
      rows[static_cast<size_t>(j)] = in_place && n < w.rows ? packed : row;
      if (in_place || n >= w.rows) continue;
      if (as_stored) {
        std::memcpy(row, packed, static_cast<size_t>(packed_bytes));
      } else {
        RepackRow(w, n, order.bits, row);
      }
    }
    uint8_t* out = tiles + panel * order.panel_bytes();
    if (w.format.lattice()) return PackCodewords(rows, row_bytes, order.bits, out);
    order.bits == 4 ? PackPanel<4>(rows, row_bytes, out) : PackPanel<8>(rows, row_bytes, out);
  });
}

}  // namespace nibble
