// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "base/thread_pool.h"
#include "tensor/blocks.h"

namespace nibble {
namespace {

template <typename T>
T Load(const std::byte* data, int64_t i) {
  T value;  // memcpy: safetensors data need not be aligned
  std::memcpy(&value, data + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

template <typename To>
void WidenBlocks(const Tensor& view, const BlockType& type, Matrix<To>& m) {
  NIBBLE_CHECK(m.cols % type.elements == 0, "{} of {}", m.cols, type.name);
  const size_t row_bytes = RowBytes(view.dtype, m.cols);
  ParallelFor(static_cast<size_t>(m.rows), [&](size_t row) {
    float values[256];
    const std::byte* block = view.data + row * row_bytes;
    To* out = m.row(static_cast<int64_t>(row)).data();
    for (int64_t i = 0; i < m.cols; i += type.elements, block += type.bytes) {
      type.decode(block, values);
      std::copy_n(values, type.elements, out + i);
    }
  });
}

template <typename To>
Matrix<To> Widen(const Tensor& view) {
  NIBBLE_CHECK(view.shape.size() == 1 || view.shape.size() == 2, "shape {}", ShapeText(view.shape));
  const bool vector = view.shape.size() == 1;
  Matrix<To> m(vector ? 1 : view.shape[0], view.shape.back());
  const auto widen = [&]<typename From>(From, auto&& value) {
    ParallelFor(static_cast<size_t>(m.rows), [&](size_t row) {
      const int64_t first = static_cast<int64_t>(row) * m.cols;
      for (int64_t i = first; i < first + m.cols; ++i) {
        m.data[static_cast<size_t>(i)] = static_cast<To>(value(Load<From>(view.data, i)));
      }
    });
  };
  if (const BlockType* type = BlockTypeOf(view.dtype)) {
    WidenBlocks(view, *type, m);
    return m;
  }
  switch (view.dtype) {
    case DType::kF64:
      widen(double(), std::identity());
      break;
    case DType::kF32:
      widen(float(), std::identity());
      break;
    case DType::kF16:
      widen(uint16_t(), F32FromF16);
      break;
    case DType::kBf16:
      widen(uint16_t(), F32FromBf16);
      break;
    default:
      NIBBLE_CHECK(false, "{} is not a float type", DTypeName(view.dtype));
  }
  return m;
}

}  // namespace

size_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBf16:
    case DType::kI16:
      return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
    default:
      NIBBLE_CHECK(false, "dtype {}", static_cast<int>(dtype));
  }
}

size_t RowBytes(DType dtype, int64_t elements) {
  const auto count = static_cast<size_t>(elements);
  const BlockType* type = BlockTypeOf(dtype);
  if (type == nullptr) return count * DTypeBytes(dtype);
  return count / static_cast<size_t>(type->elements) * type->bytes;
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16 ||
         BlockTypeOf(dtype) != nullptr;
}

std::string DTypeName(DType dtype) {
  constexpr const char* kNames[] = {"F64", "F32", "F16", "BF16", "I64",
                                    "I32", "I16", "I8",  "U8",   "BOOL"};
  const BlockType* type = BlockTypeOf(dtype);
  return type != nullptr ? std::string(type->name) : kNames[static_cast<size_t>(dtype)];
}

int64_t Tensor::elements() const {
  int64_t n = 1;
  for (int64_t extent : shape) n *= extent;
  return n;
}

Tensor Tensor::Rows(int64_t first, int64_t count) const {
  NIBBLE_CHECK(shape.size() == 2 && first + count <= shape[0], "rows {} + {} of {}", first, count,
               ShapeText(shape));
  const size_t begin = static_cast<size_t>(first) * RowBytes(dtype, shape[1]);
  return {dtype, {count, shape[1]}, data + begin, owner};
}

std::string ShapeText(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Matrix<double> ToF64(const Tensor& view) {
  return Widen<double>(view);
}
Matrix<float> ToF32(const Tensor& view) {
  return Widen<float>(view);
}

}  // namespace nibble
