// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/half.h"
#include "base/rng.h"
#include "tensor/finite.h"

namespace nibble {
namespace {

// `values` as bytes at an odd address, as a tensor inside a safetensors file may lie.
template <typename T>
struct Misaligned {
  explicit Misaligned(const std::vector<T>& values) : bytes(values.size() * sizeof(T) + 1) {
    std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
  }
  Tensor View(DType dtype, std::vector<int64_t> shape) const {
    return {dtype, std::move(shape), bytes.data() + 1};
  }
  std::vector<std::byte> bytes;
};

TEST(TensorTest, DTypeNamesAndSizes) {
  const std::vector<std::tuple<DType, const char*, size_t>> types = {
      {DType::kF64, "F64", 8},   {DType::kF32, "F32", 4}, {DType::kF16, "F16", 2},
      {DType::kBf16, "BF16", 2}, {DType::kI64, "I64", 8}, {DType::kI32, "I32", 4},
      {DType::kI16, "I16", 2},   {DType::kI8, "I8", 1},   {DType::kU8, "U8", 1},
      {DType::kBool, "BOOL", 1}};
  for (const auto& [dtype, name, bytes] : types) {
    EXPECT_EQ(DTypeName(dtype), name);
    EXPECT_EQ(DTypeBytes(dtype), bytes);
  }
}

TEST(TensorTest, ViewSizesAndShapeText) {
  const Tensor view{DType::kI32, {3, 5, 7}, nullptr};
  EXPECT_EQ(view.elements(), 105);
  EXPECT_EQ(view.bytes(), 420u);
  const Tensor scalar{DType::kF64, {}, nullptr};
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_EQ((Tensor{DType::kF64, {4, 0}, nullptr}.elements()), 0);
  EXPECT_EQ(ShapeText(view.shape), "[3, 5, 7]");
  EXPECT_EQ(ShapeText(scalar.shape), "[]");
}

TEST(TensorTest, TypedAccess) {
  const std::vector<int32_t> values = {1, -2, 3, -4};
  const Tensor view{DType::kI32, {2, 2}, reinterpret_cast<const std::byte*>(values.data())};
  EXPECT_EQ(view.Copy<int32_t>()[3], -4);
  EXPECT_EQ(view.Copy<int32_t>().size(), 4u);
}

TEST(TensorDeathTest, MisuseAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::vector<int64_t> values = {1, 2};
  const Tensor view{DType::kI64, {2}, reinterpret_cast<const std::byte*>(values.data())};
  EXPECT_DEATH(view.Copy<int32_t>(), "I64 as 4 bytes");
  EXPECT_DEATH(ToF32(view), "I64 is not a float type");
  const Tensor cube{DType::kF32, {1, 1, 1}, view.data};
  EXPECT_DEATH(ToF64(cube), "shape \\[1, 1, 1\\]");
}

TEST(TensorTest, MatrixRowsAreViewsOfItsData) {
  Matrix<int> m(3, 5);
  std::iota(m.data.begin(), m.data.end(), 0);
  EXPECT_EQ(m.row(2)[4], 14);
  m.row(1)[0] = 99;
  EXPECT_EQ(m.data[5], 99);
  const Matrix<int>& constant = m;
  EXPECT_EQ(constant.row(1).size(), 5u);
  EXPECT_EQ(Matrix<float>().data.size(), 0u);
}

TEST(TensorTest, WideningIsExact) {
  Rng rng(3);
  std::vector<double> f64(21);
  std::vector<float> f32(21);
  std::vector<uint16_t> f16(21), bf16(21);
  for (size_t i = 0; i < 21; ++i) {
    f64[i] = rng.Normal();
    f32[i] = static_cast<float>(rng.Normal());
    f16[i] = F16FromF32(static_cast<float>(rng.Normal()));
    bf16[i] = Bf16FromF32(static_cast<float>(rng.Normal()));
  }
  f32[0] = 0x1p-149f, f16[0] = 0x8001, bf16[0] = 0x7F7F;
  const Misaligned<double> m64(f64);
  const Misaligned<float> m32(f32);
  const Misaligned<uint16_t> m16(f16), mb16(bf16);
  const auto a = ToF64(m64.View(DType::kF64, {3, 7}));
  const auto b = ToF64(m32.View(DType::kF32, {7, 3}));
  const auto c = ToF64(m16.View(DType::kF16, {21}));
  const auto d = ToF32(mb16.View(DType::kBf16, {21, 1}));
  const auto e = ToF32(m64.View(DType::kF64, {3, 7}));
  EXPECT_EQ(a.rows, 3);
  EXPECT_EQ(b.cols, 3);
  EXPECT_EQ(c.rows, 1);
  EXPECT_EQ(c.cols, 21);
  for (size_t i = 0; i < 21; ++i) {
    EXPECT_EQ(a.data[i], f64[i]);
    EXPECT_EQ(b.data[i], f32[i]);
    EXPECT_EQ(c.data[i], F32FromF16(f16[i]));
    EXPECT_EQ(d.data[i], F32FromBf16(bf16[i]));
    EXPECT_EQ(e.data[i], static_cast<float>(f64[i]));
  }
}

// Every bit pattern of 16 bits, several times over, so that pieces end within them.
TEST(FiniteTest, CountsWhatTheLibraryCallsNotFinite) {
  std::vector<uint16_t> bits;
  int64_t f16 = 0, bf16 = 0;
  for (uint32_t i = 0; i < 5u << 16; ++i) {
    bits.push_back(static_cast<uint16_t>(i * 40503));  // odd: a permutation of 2^16
    f16 += !std::isfinite(F32FromF16(bits.back()));
    bf16 += !std::isfinite(F32FromBf16(bits.back()));
  }
  const Misaligned<uint16_t> values(bits);
  const auto count = static_cast<int64_t>(bits.size());
  EXPECT_EQ(CountNotFinite(values.View(DType::kF16, {count})), f16);
  EXPECT_EQ(CountNotFinite(values.View(DType::kBf16, {5, count / 5})), bf16);
  EXPECT_EQ(f16, 5 * 2 * 1024);  // two signs, 2^10 mantissas
}

TEST(FiniteTest, OneValueAnywhereIsFound) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    for (size_t at = 0; at < 70; ++at) {
      std::vector<float> row(70, -kMax);
      row[at / 2] = 0x1p-149f;
      EXPECT_TRUE(AllFinite(row));
      row[at] = bad;
      EXPECT_FALSE(AllFinite(row)) << at;
      EXPECT_EQ(CountNotFinite(Misaligned<float>(row).View(DType::kF32, {7, 10})), 1) << at;
    }
  }
  EXPECT_TRUE(AllFinite({}));
  EXPECT_EQ(CountNotFinite({DType::kF32, {0}, nullptr}), 0);
}

TEST(FiniteTest, TheErrorCounts) {
  std::vector<float> values(300'000, 1);
  values[0] = NAN, values[262'144] = INFINITY, values.back() = -INFINITY;
  const Misaligned<float> tensor(values);
  try {
    RequireFinite(tensor.View(DType::kF32, {300'000}), "m: x.weight");
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "m: x.weight: 3 of 300000 values are NaN or infinite");
  }
}

}  // namespace
}  // namespace nibble
