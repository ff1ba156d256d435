// SPDX-License-Identifier: Apache-2.0
// Elements that can be addressed: a type, a borrowed view and an owned matrix. Packed codes are not
// tensors; formats/ describes bytes that must be decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace nibble {

enum class DType { kF64, kF32, kF16, kBf16, kI64, kI32, kI16, kI8, kU8, kBool };

size_t DTypeBytes(DType dtype);
std::string DTypeName(DType dtype);  // safetensors' names: "F32", "BF16", "U8", ...

// Row-major, contiguous, not owned.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;

  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * DTypeBytes(dtype); }
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

std::string ShapeText(std::span<const int64_t> shape);  // "[32, 64]"

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

// Widens F64, F32, F16 or BF16 elements; 1-D tensors become one row. Exact for every type.
Matrix<double> ToF64(const TensorView& view);
// The same to fp32 (F64 is rounded).
Matrix<float> ToF32(const TensorView& view);

}  // namespace nibble
