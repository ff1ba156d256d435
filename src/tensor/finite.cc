// SPDX-License-Identifier: Apache-2.0
#include "tensor/finite.h"

#include <algorithm>
#include <atomic>

#include "base/thread_pool.h"
#include "tensor/blocks.h"

namespace nibble {
namespace {

// Counts those of `count` elements, at any address, whose exponent bits are all ones.
template <typename Bits>
uint32_t Count(const std::byte* data, size_t count, Bits exponent) {
  uint32_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    found += (bits & exponent) == exponent;
  }
  return found;
}

uint32_t Count(const Tensor& tensor, size_t first, size_t count) {
  const std::byte* data = tensor.data + RowBytes(tensor.dtype, static_cast<int64_t>(first));
  if (const BlockType* type = BlockTypeOf(tensor.dtype)) {
    float values[256];
    uint32_t found = 0;
    const auto elements = static_cast<size_t>(type->elements);
    for (size_t i = 0; i < count; i += elements, data += type->bytes) {
      type->decode(data, values);
      found += Count<uint32_t>(reinterpret_cast<const std::byte*>(values), elements, 0x7F800000);
    }
    return found;
  }
  switch (tensor.dtype) {
    case DType::kF32:
      return Count<uint32_t>(data, count, 0x7F800000);
    case DType::kF16:
      return Count<uint16_t>(data, count, 0x7C00);
    case DType::kBf16:
      return Count<uint16_t>(data, count, 0x7F80);
    default:
      NIBBLE_CHECK(false, "{} is not checked", DTypeName(tensor.dtype));
  }
}

}  // namespace

bool AllFinite(std::span<const float> values) {
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  return Count<uint32_t>(data, values.size(), 0x7F800000) == 0;
}

int64_t CountNotFinite(const Tensor& tensor) {
  constexpr size_t kPiece = 1 << 18;  // whole blocks
  const auto elements = static_cast<size_t>(tensor.elements());
  std::atomic<int64_t> found = 0;
  ParallelFor((elements + kPiece - 1) / kPiece, [&](size_t piece) {
    const size_t first = piece * kPiece;
    found += Count(tensor, first, std::min(kPiece, elements - first));
  });
  return found;
}

void RequireFinite(const Tensor& tensor, const std::string& what) {
  const int64_t found = CountNotFinite(tensor);
  if (found == 0) return;
  Fail("{}: {} of {} values are NaN or infinite", what, found, tensor.elements());
}

}  // namespace nibble
