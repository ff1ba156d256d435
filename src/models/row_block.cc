// SPDX-License-Identifier: Apache-2.0
#include "models/row_block.h"

#include <cstring>

namespace nibble {
namespace {

constexpr int64_t kBlockElements = 32;              // elements of MXFP4
constexpr size_t kBlockCodes = kBlockElements / 2;  // their bytes
constexpr size_t kBlockBytes = 1 + kBlockCodes;     // with the exponent in front, in GGUF's order

Tensor OwnedRows(DType dtype, int64_t rows, int64_t cols, std::vector<std::byte> bytes) {
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return {dtype, {rows, cols}, owner->data(), owner};
}

// Row `row` of a matrix that is stored transposed, [cols, outputs] of the block's matrix.
void CopyColumn(const Tensor& all, const RowBlock& block, int64_t row, int64_t cols,
                std::byte* target) {
  const size_t size = DTypeBytes(all.dtype);
  const int64_t outputs = block.total / block.stacked;
  const std::byte* from =
      all.data + static_cast<size_t>(row / outputs * outputs * cols + row % outputs) * size;
  for (int64_t k = 0; k < cols; ++k) {
    std::memcpy(target + static_cast<size_t>(k) * size,
                from + static_cast<size_t>(k * outputs) * size, size);
  }
}

// Element e < 16 is the low nibble of byte e, e >= 16 the high one of byte e - 16.
void ReorderNibbles(const std::byte* from, std::byte* to) {
  const auto code = [&](size_t e) {
    const auto both = std::to_integer<unsigned>(from[e / 2]);
    return e % 2 == 0 ? both & 15 : both >> 4;
  };
  for (size_t i = 0; i < kBlockCodes; ++i) {
    to[i] = static_cast<std::byte>(code(i) | code(i + kBlockCodes) << 4);
  }
}

}  // namespace

std::vector<int64_t> ShapeOf(const RowBlock& block, int64_t cols) {
  const int64_t outputs = block.total / block.stacked;
  if (block.stacked == 1) return {outputs, cols};
  return block.transposed ? std::vector<int64_t>{block.stacked, cols, outputs}
                          : std::vector<int64_t>{block.stacked, outputs, cols};
}

Tensor RowsOf(const Tensor& all, const RowBlock& block, int64_t rows, int64_t cols) {
  Tensor flat = all;
  flat.shape = {block.total, cols};
  if (block.run == 0 && !block.transposed) return flat.Rows(block.first, rows);
  const size_t row_bytes = RowBytes(all.dtype, cols);
  std::vector<std::byte> bytes(static_cast<size_t>(rows) * row_bytes);
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t row = block.Row(n);
    std::byte* const target = bytes.data() + static_cast<size_t>(n) * row_bytes;
    if (block.transposed) {
      CopyColumn(all, block, row, cols, target);
    } else {
      std::memcpy(target, all.data + static_cast<size_t>(row) * row_bytes, row_bytes);
    }
  }
  return OwnedRows(all.dtype, rows, cols, std::move(bytes));
}

Tensor RowsOfMxfp4(const Tensor& blocks, const Tensor& exponents, const RowBlock& block,
                   int64_t rows, int64_t cols) {
  const auto count = static_cast<size_t>(cols / kBlockElements);  // of a row
  std::vector<std::byte> bytes(static_cast<size_t>(rows) * count * kBlockBytes);
  std::byte* target = bytes.data();
  for (int64_t n = 0; n < rows; ++n) {
    const auto first = static_cast<size_t>(block.Row(n)) * count;
    for (size_t i = first; i < first + count; ++i, target += kBlockBytes) {
      target[0] = exponents.data[i];
      ReorderNibbles(blocks.data + i * kBlockCodes, target + 1);
    }
  }
  return OwnedRows(DType::kMxfp4, rows, cols, std::move(bytes));
}

}  // namespace nibble
