// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/weight_order.h"

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

// One block from 64 rows of codes, `row_bytes` apart; nibbles are changed by `flip`.
template <int kBits>
void OrderBlock(const uint8_t* rows, int64_t row_bytes, uint32_t flip, uint8_t* block) {
  for (int64_t t = 0; t < kThreads; ++t) {
    const int64_t lane = t % 32;
    const uint8_t* upper = rows + (t / 32 * 16 + lane / 4) * row_bytes;
    const uint8_t* lower = upper + 8 * row_bytes;
    for (int64_t step = 0; step < 8; ++step) {  // registers 2 step and 2 step + 1
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

// The steps of the 64 outputs from `first` on for the at-th block of inputs.
void OrderSteps(const PackedWeights& w, int64_t first, int64_t at, uint8_t* steps) {
  const uint8_t* scales = w.group_scales.as<uint8_t>().data();
  const int8_t* zeros = w.format.symmetric ? nullptr : w.zeros.as<int8_t>().data();
  for (int64_t i = 0; i < kBlockOutputs; ++i) {
    const int64_t n = first + i / 16 * 16 + i % 16 / 2 + i % 2 * 8;
    const int64_t g = n * w.groups() + at * kBlockInputs / w.format.group;
    const uint16_t step =
        n < w.rows ? LevelStep(scales[g], zeros == nullptr ? 0 : zeros[g]) : uint16_t{0};
    std::memcpy(steps + i * 2, &step, sizeof(step));
  }
}

}  // namespace

WeightKind BlockKind(const FormatSpec& weights) {
  if (weights.second_level) return WeightKind::kLevels;
  return weights.bits <= 4 ? WeightKind::kNibbles : WeightKind::kBytes;
}

WeightOrder::WeightOrder(const PackedWeights& w)
    : output_blocks((w.rows + kBlockOutputs - 1) / kBlockOutputs),
      input_blocks((w.cols + kBlockInputs - 1) / kBlockInputs),
      kind(BlockKind(w.format)) {
  NIBBLE_CHECK(!w.format.second_level || w.format.group % kBlockInputs == 0, "groups of {}",
               w.format.group);
}

void OrderWeights(const PackedWeights& w, uint8_t* ordered) {
  const WeightOrder order(w);
  const uint8_t* codes = w.codes.as<uint8_t>().data();
  const int64_t packed_bytes = PackedBytes(w.cols, w.format.bits);
  const int64_t row_bytes = PackedBytes(order.input_blocks * kBlockInputs, order.bits());
  const uint32_t flip = w.format.second_level ? 0x88888888u : 0;  // + 8
  ParallelFor(static_cast<size_t>(order.output_blocks), [&](size_t task) {
    const auto first = static_cast<int64_t>(task) * kBlockOutputs;
    std::vector<uint8_t> padded(static_cast<size_t>(kBlockOutputs * row_bytes));
    for (int64_t i = 0; i < kBlockOutputs && first + i < w.rows; ++i) {
      const uint8_t* packed = codes + (first + i) * packed_bytes;
      uint8_t* row = padded.data() + i * row_bytes;
      if (w.format.bits == order.bits() && !w.format.sparse) {
        std::memcpy(row, packed, static_cast<size_t>(packed_bytes));
      } else {
        RepackRow(w, first + i, order.bits(), row);
      }
    }
    uint8_t* block = ordered + first / kBlockOutputs * order.input_blocks * order.block_bytes();
    for (int64_t k = 0; k < order.input_blocks; ++k, block += order.block_bytes()) {
      const uint8_t* rows = padded.data() + PackedBytes(k * kBlockInputs, order.bits());
      order.bits() == 4 ? OrderBlock<4>(rows, row_bytes, flip, block)
                        : OrderBlock<8>(rows, row_bytes, flip, block);
      if (order.kind == WeightKind::kLevels) {
        OrderSteps(w, first, k, block + order.block_bytes() - kStepBytes);
      }
    }
  });
}

}  // namespace nibble::cuda
