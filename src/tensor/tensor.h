// SPDX-License-Identifier: Apache-2.0
// Elements that can be addressed: a type, a tensor that borrows or shares them, and a matrix that
// owns them. Packed codes are bytes here; formats/ says what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace nibble {

enum class DType {
  kF64,
  kF32,
  kF16,
  kBf16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  // Blocks of a row (tensor/blocks.h).
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4K,
  kQ5K,
  kQ6K,
  kMxfp4
};

size_t DTypeBytes(DType dtype);      // of an element; blocks have none
bool IsFloat(DType dtype);           // F32, F16, BF16 or blocks, as weights come
std::string DTypeName(DType dtype);  // safetensors' names: "F32", "BF16", "U8", ...; "Q4_K"
size_t RowBytes(DType dtype, int64_t elements);         // whole blocks
std::string ShapeText(std::span<const int64_t> shape);  // "[32, 64]"

// Row-major, contiguous. The bytes are borrowed (a mapped file), or `owner` keeps them for all
// copies.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;

  // Takes `values`, of the element size; no values, no data.
  template <typename T>
  static Tensor Of(DType dtype, std::vector<int64_t> shape, std::vector<T> values) {
    if (values.empty()) return {};
    const auto kept = std::make_shared<const std::vector<T>>(std::move(values));
    Tensor tensor = {dtype, std::move(shape), reinterpret_cast<const std::byte*>(kept->data()),
                     kept};
    NIBBLE_CHECK(tensor.bytes() == kept->size() * sizeof(T), "{} values for {}", kept->size(),
                 ShapeText(tensor.shape));
    return tensor;
  }

  int64_t elements() const;
  size_t bytes() const { return RowBytes(dtype, elements()); }
  // Rows [first, first + count) of a matrix, borrowed.
  Tensor Rows(int64_t first, int64_t count) const;
  // One-byte elements in place. Wider ones may lie at any address of a file: Copy() or ToF32().
  template <typename T>
  std::span<const T> as() const {
    static_assert(sizeof(T) == 1);
    NIBBLE_CHECK(DTypeBytes(dtype) == 1, "{} as bytes", DTypeName(dtype));
    return {reinterpret_cast<const T*>(data), static_cast<size_t>(elements())};
  }
  // The elements as T; sizeof(T) must be the element size.
  template <typename T>
  std::vector<T> Copy() const {
    NIBBLE_CHECK(sizeof(T) == DTypeBytes(dtype), "{} as {} bytes", DTypeName(dtype), sizeof(T));
    std::vector<T> copy(static_cast<size_t>(elements()));
    if (!copy.empty()) std::memcpy(copy.data(), data, bytes());
    return copy;
  }
};

// [rows, cols], row-major, owned.
template <typename T>
struct Matrix {
  Matrix() = default;
  Matrix(int64_t r, int64_t c) : rows(r), cols(c), data(static_cast<size_t>(r * c)) {}
  std::span<T> row(int64_t i) { return {data.data() + i * cols, static_cast<size_t>(cols)}; }
  std::span<const T> row(int64_t i) const {
    return {data.data() + i * cols, static_cast<size_t>(cols)};
  }

  int64_t rows = 0, cols = 0;
  std::vector<T> data;
};

// [rows, cols] that borrows from `values`.
inline Tensor Borrow(const Matrix<float>& values) {
  return {DType::kF32,
          {values.rows, values.cols},
          reinterpret_cast<const std::byte*>(values.data.data())};
}

// Widens F64, F32, F16, BF16 elements or blocks; 1-D tensors become one row. Exact for every type.
Matrix<double> ToF64(const Tensor& view);
// Widens the same types to fp32; F64 is rounded.
Matrix<float> ToF32(const Tensor& view);

}  // namespace nibble
