// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/weight_order.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/thread_pool.h"

namespace nibble::cuda {
namespace {

constexpr int64_t kThreads = 128;

static_assert(std::endian::native == std::endian::little);

// Four nibbles as the low halves of four bytes.
uint32_t Spread(uint16_t nibbles) {
  uint32_t pairs = (nibbles | uint32_t{nibbles} << 8) & 0x00FF00FFu;
  return (pairs | pairs << 4) & 0x0F0F0F0Fu;
}

// Four codes of a row from `input` on: with 4 bits as low halves of bytes.
template <int kBits>
uint32_t FourCodes(const uint8_t* row, int64_t input) {
  if constexpr (kBits == 8) {
    uint32_t codes;
    std::memcpy(&codes, row + input, sizeof(codes));
    return codes;
  } else {
    uint16_t codes;
    std::memcpy(&codes, row + input / 2, sizeof(codes));
    return Spread(codes);
  }
}

// One block from 64 rows of 16 kSteps codes, `row_bytes` apart; nibbles are changed by `flip`.
template <int kBits, int64_t kSteps = 8>
void OrderBlock(const uint8_t* rows, int64_t row_bytes, uint32_t flip, uint8_t* block) {
  for (int64_t t = 0; t < kThreads; ++t) {
    const int64_t lane = t % 32;
    const uint8_t* upper = rows + (t / 32 * 16 + lane / 4) * row_bytes;
    const uint8_t* lower = upper + 8 * row_bytes;
    for (int64_t step = 0; step < kSteps; ++step) {  // registers 2 step and 2 step + 1
      const int64_t input = 16 * step + 4 * (lane % 4);
      const uint32_t codes[] = {FourCodes<kBits>(upper, input), FourCodes<kBits>(lower, input)};
      if constexpr (kBits == 8) {
        std::memcpy(block + step / 2 * 2048 + t * 16 + step % 2 * 8, codes, sizeof(codes));
      } else {
        const uint32_t word = (codes[0] | codes[1] << 4) ^ flip;
        std::memcpy(block + step / 4 * 2048 + t * 16 + step % 4 * 4, &word, sizeof(word));
      }
    }
  }
}

// Orders the codes of codewords, 16 of them in a block's row.
void OrderCodewords(const uint8_t* rows, int64_t row_bytes, int bits, uint8_t* block) {
  for (int64_t i = 0; i < kThreads * 4 * 2; ++i) {
    const int64_t t = i / 8, step = i / 2 % 4, h = i % 2, lane = t % 32;
    const uint8_t* code =
        rows + (t / 32 * 16 + lane / 4 + 8 * h) * row_bytes + (4 * step + lane % 4) * bits;
    uint8_t* const word = block + 16 * t + 4 * step + 2 * h;
    std::memcpy(word, code + bits - 2, 2);
    if (bits == 4) std::memcpy(word + 2048, code, 2);
    if (bits == 3) block[2048 + 8 * t + 2 * step + h] = *code;
  }
}

// The places of a block's sparse codes, from 64 rows of them, `row_bytes` apart.
void OrderPlaces(const uint8_t* rows, int64_t row_bytes, uint8_t* places) {
  constexpr int64_t kWord = 4;  // bytes, of 32 inputs
  for (int64_t t = 0; t < kThreads; ++t) {
    const int64_t lane = t % 32, row = t / 32 * 16 + lane / 4 + 8 * (lane % 2);
    for (int64_t s = 0; s < 2; ++s) {
      const uint8_t* const word = rows + row * row_bytes + kWord * (2 * s + lane / 2 % 2);
      std::memcpy(places + 2 * kWord * t + kWord * s, word, kWord);
    }
  }
}

// Orders 64 rows of sparse weights from `first` on. Behind the last output or input codes are 0, at
// places that are as good as any.
void OrderSparse(const PackedWeights& w, const WeightOrder& order, int64_t first, uint8_t* block) {
  constexpr uint8_t kAnyPlaces = 0x44;  // 0 and 1 of every four
  const int64_t stored = w.format.stored(w.cols), stored_block = kBlockInputs / 2;
  const int64_t code_bytes = PackedBytes(order.input_blocks * stored_block, order.bits());
  const int64_t place_bytes = order.input_blocks * kBlockInputs / 8;
  std::vector<uint8_t> codes(static_cast<size_t>(kBlockOutputs * code_bytes));
  std::vector<uint8_t> places(static_cast<size_t>(kBlockOutputs * place_bytes), kAnyPlaces);
  std::vector<int16_t> wide(static_cast<size_t>(stored));
  for (int64_t i = 0; i < kBlockOutputs && first + i < w.rows; ++i) {
    const int64_t n = first + i;
    UnpackCodes(w.codes.as<uint8_t>().data() + n * PackedBytes(stored, w.format.bits), stored,
                w.format.bits, true, wide.data());
    const std::vector<int8_t> row(wide.begin(), wide.end());
    PackCodes(row.data(), stored, order.bits(), codes.data() + i * code_bytes);
    uint8_t* const to = places.data() + i * place_bytes;
    const int64_t bytes = PackedBytes(stored, 2);
    std::memcpy(to, w.places.as<uint8_t>().data() + n * bytes, static_cast<size_t>(bytes));
  }
  for (int64_t k = 0; k < order.input_blocks; ++k, block += order.block_bytes()) {
    const uint8_t* rows = codes.data() + PackedBytes(k * stored_block, order.bits());
    order.bits() == 4 ? OrderBlock<4, 4>(rows, code_bytes, 0, block)
                      : OrderBlock<8, 4>(rows, code_bytes, 0, block);
    OrderPlaces(places.data() + k * kBlockInputs / 8, place_bytes,
                block + StoredCodeBytes(order.kind));
  }
}

// The 16-bit number of group g of the weights. StartOf gives its start where there are zeros.
uint16_t ScaleOf(const PackedWeights& w, WeightKind kind, int64_t g) {
  if (kind != WeightKind::kLevels) {
    uint16_t scale;
    NIBBLE_CHECK(w.scales.dtype == DType::kF16, "{}", DTypeName(w.scales.dtype));
    std::memcpy(&scale, w.scales.data + g * int64_t{sizeof(scale)}, sizeof(scale));
    return scale;
  }
  const int zero = w.format.symmetric ? 0 : w.zeros.as<int8_t>()[static_cast<size_t>(g)];
  return LevelStep(w.group_scales.as<uint8_t>()[static_cast<size_t>(g)], zero);
}
uint8_t StartOf(const PackedWeights& w, int64_t g) {
  constexpr int kMax = 120;  // so that code - zero fits into a byte
  const int zero = w.zeros.as<int8_t>()[static_cast<size_t>(g)];
  if (zero < -kMax || zero > kMax) Fail("a zero of {} for codes of 4 bits", zero);
  return static_cast<uint8_t>(kMax - zero);
}

// Writes the scales behind the codes of block k of the outputs from `first` on: 0 behind the last
// output, the scales of the last group behind the last input.
void OrderScales(const PackedWeights& w, const WeightOrder& order, int64_t first, int64_t k,
                 uint8_t* scales) {
  const int64_t pieces = order.scales.pieces;
  uint8_t* const starts = scales + 128 * pieces;
  std::memset(scales, 0, static_cast<size_t>(order.scales.bytes()));
  for (int64_t i = 0; i < kBlockOutputs * pieces; ++i) {
    const int64_t pair = i / 2 / pieces, h = i % 2, piece = i / 2 % pieces;
    const int64_t n = first + pair / 8 * 16 + pair % 8 + h * 8;
    if (n >= w.rows) continue;
    const int64_t input = k * kBlockInputs + piece * kBlockInputs / pieces;
    const int64_t g = n * w.groups() + std::min(input / w.format.group, w.groups() - 1);
    const uint16_t scale = ScaleOf(w, order.kind, g);
    std::memcpy(scales + 4 * (pair * pieces + piece) + 2 * h, &scale, sizeof(scale));
    if (order.scales.zeros) {
      starts[std::max<int64_t>(4, 2 * pieces) * pair + 2 * piece + h] = StartOf(w, g);
    }
  }
}

}  // namespace

WeightOrder::WeightOrder(const PackedWeights& w, WeightKind block_kind, int piece)
    : output_blocks((w.rows + kBlockOutputs - 1) / kBlockOutputs),
      input_blocks((w.cols + kBlockInputs - 1) / kBlockInputs),
      kind(block_kind) {
  if (kind == WeightKind::kLevels || (HasGroups(kind) && w.format.scales(w.cols) != 1)) {
    NIBBLE_CHECK(w.format.group % piece == 0 && kBlockInputs % piece == 0, "{}", piece);
    scales.pieces = static_cast<int>(kBlockInputs) / piece;
    scales.zeros = HasGroups(kind) && !w.format.symmetric;
    scales.floats = kind == WeightKind::kNibbleGroups && w.format.e2m1();
  }
}

void OrderWeights(const PackedWeights& w, const WeightOrder& order, uint8_t* ordered) {
  const uint8_t* codes = w.codes.as<uint8_t>().data();
  const int64_t packed_bytes = PackedBytes(w.cols, w.format.bits);
  const int64_t row_bytes = PackedBytes(order.input_blocks * kBlockInputs, order.bits());
  const bool is_unsigned = order.kind == WeightKind::kLevels || order.scales.zeros;
  const bool codewords = CodewordBits(order.kind) != 0;
  const uint32_t flip = is_unsigned ? 0x88888888u : 0;  // + 8
  ParallelFor(static_cast<size_t>(order.output_blocks), [&](size_t task) {
    const auto first = static_cast<int64_t>(task) * kBlockOutputs;
    uint8_t* block = ordered + first / kBlockOutputs * order.input_blocks * order.block_bytes();
    if (IsSparse(order.kind)) return OrderSparse(w, order, first, block);
    std::vector<uint8_t> padded(static_cast<size_t>(kBlockOutputs * row_bytes));
    for (int64_t i = 0; i < kBlockOutputs && first + i < w.rows; ++i) {
      const uint8_t* packed = codes + (first + i) * packed_bytes;
      uint8_t* row = padded.data() + i * row_bytes;
      if (w.format.bits == order.bits() && (!w.format.in_blocks() || codewords)) {
        std::memcpy(row, packed, static_cast<size_t>(packed_bytes));
      } else {
        RepackRow(w, first + i, order.bits(), row);
      }
    }
    for (int64_t k = 0; k < order.input_blocks; ++k, block += order.block_bytes()) {
      const uint8_t* rows = padded.data() + PackedBytes(k * kBlockInputs, order.bits());
      codewords           ? OrderCodewords(rows, row_bytes, order.bits(), block)
      : order.bits() == 4 ? OrderBlock<4>(rows, row_bytes, flip, block)
                          : OrderBlock<8>(rows, row_bytes, flip, block);
      if (order.scales.pieces > 0) OrderScales(w, order, first, k, block + CodeBytes(order.kind));
    }
  });
}

}  // namespace nibble::cuda
