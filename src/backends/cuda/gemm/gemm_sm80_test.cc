// SPDX-License-Identifier: Apache-2.0
// The prefill product of older GPUs against the law of gemm.h, bit for bit, on any GPU: newer ones
// run the same instructions.
#include "backends/cuda/gemm/gemm_sm80.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "backends/cuda/gemm/weight_order.h"
#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/device.h"
#include "base/half.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "formats/packed_weights_testing.h"
#include "tensor/random_testing.h"

namespace nibble::cuda {
namespace {

constexpr float kPoison = -12345.678f;

struct Case {
  int w_bits, a_bits;
  bool w_zeros, x_zero_offsets, bias, accumulate;
  RealType y_type;
  int64_t tokens, rows, cols, y_stride;
  bool lowest = false;  // all codes are the lowest one

  bool planes() const { return a_bits == 16; }
  int64_t x_rows() const { return planes() ? PlaneRows(tokens) : tokens; }
  std::string Text() const {
    return fmt::format(
        "s{} x s{}, zeros {}, zero offsets {}, bias {}, add {}, {}, {} x {} x {}, {}", w_bits,
        a_bits, w_zeros, x_zero_offsets, bias, accumulate,
        y_type == RealType::kFloat32 ? "float" : "bf16", tokens, rows, cols, y_stride);
  }
};

// A product's operands; all arrays are filled, whether the case uses them or not.
struct Operands {
  int64_t stride;                // of x
  Matrix<int8_t> w, x;           // [rows, cols], [x_rows, stride]
  std::vector<uint8_t> ordered;  // codes of w as in weight_order.h
  std::vector<float> w_scales, w_zeros, w_sums, bias;
  std::vector<float> x_scales, x_zero_offsets;
  std::vector<int32_t> x_sums;
  std::vector<float> y;  // [tokens + 1, y_stride] before the product
};

int8_t RandomCode(Rng& rng, int bits, bool lowest = false) {
  const int code = lowest ? 0 : static_cast<int>(rng.Below(uint64_t{1} << bits));
  return static_cast<int8_t>(code - (1 << (bits - 1)));
}

std::vector<uint8_t> Ordered(const Matrix<int8_t>& codes, int bits) {
  const int64_t row_bytes = PackedBytes(codes.cols, bits);
  PlaneVectors w = {.format = {.bits = bits}, .rows = codes.rows, .cols = codes.cols};
  w.codes.resize(static_cast<size_t>(codes.rows * row_bytes));
  for (int64_t n = 0; n < codes.rows; ++n) {
    PackCodes(codes.row(n).data(), codes.cols, bits, w.codes.data() + n * row_bytes);
  }
  const PackedWeights view = View(w);
  const WeightOrder order(view, bits == 4 ? WeightKind::kNibbles : WeightKind::kBytes);
  std::vector<uint8_t> ordered(static_cast<size_t>(order.bytes()));
  OrderWeights(view, order, ordered.data());
  return ordered;
}

Operands RandomOperands(Rng& rng, const Case& c) {
  Operands o = {.stride = (c.cols + 127) / 128 * 128};
  o.w = Matrix<int8_t>(c.rows, c.cols);
  o.x = Matrix<int8_t>(c.x_rows(), o.stride);
  for (int64_t n = 0; n < c.rows; ++n) {
    int32_t sum = 0;
    for (int8_t& code : o.w.row(n)) sum += code = RandomCode(rng, c.w_bits, c.lowest);
    o.w_sums.push_back(static_cast<float>(sum));
    o.w_zeros.push_back(static_cast<float>(RandomCode(rng, c.w_bits)));
  }
  for (int64_t t = 0; t < c.x_rows(); ++t) {
    int32_t sum = 0;
    for (int8_t& code : o.x.row(t).first(static_cast<size_t>(c.cols))) {
      sum += code = RandomCode(rng, std::min(c.a_bits, 8), c.lowest);
    }
    o.x_sums.push_back(sum);
  }
  o.ordered = Ordered(o.w, c.w_bits);
  o.w_scales = RandomFloats(rng, c.rows), o.bias = RandomFloats(rng, c.rows);
  o.x_scales = RandomFloats(rng, c.tokens), o.x_zero_offsets = RandomFloats(rng, c.tokens);
  o.y.assign(static_cast<size_t>((c.tokens + 1) * c.y_stride), kPoison);
  for (int64_t t = 0; c.accumulate && t < c.tokens; ++t) {
    for (int64_t n = 0; n < c.rows; ++n) {
      o.y[static_cast<size_t>(t * c.y_stride + n)] = static_cast<float>(rng.Normal());
    }
  }
  return o;
}

// The expected bits of y: the law's results, and elsewhere the old values.
std::vector<uint32_t> Expected(const Case& c, const Operands& o) {
  const bool bf16 = c.y_type == RealType::kBfloat16;
  const auto bits = [&](float v) { return bf16 ? Bf16FromF32(v) : std::bit_cast<uint32_t>(v); };
  std::vector<uint32_t> y(o.y.size());
  std::transform(o.y.begin(), o.y.end(), y.begin(), bits);
  ParallelFor(static_cast<size_t>(c.tokens), [&](size_t t) {
    const auto token = static_cast<int64_t>(t);
    for (size_t n = 0; n < static_cast<size_t>(c.rows); ++n) {
      const int8_t* w = o.w.row(static_cast<int64_t>(n)).data();
      const int64_t pi = c.w_zeros ? static_cast<int64_t>(o.w_zeros[n]) : 0;
      const auto centred = [&](int64_t row) {
        const int8_t* x = o.x.row(row).data();
        int64_t d = 0;
        for (int64_t k = 0; k < c.cols; ++k) d += x[k] * w[k];
        return static_cast<float>(d - pi * o.x_sums[static_cast<size_t>(row)]);
      };
      float v = c.planes()
                    ? std::fma(256.0f, centred(PlaneRow(token)), centred(PlaneRow(token) + 8))
                    : centred(token);
      if (c.x_zero_offsets) {
        v += o.x_zero_offsets[t] *
             static_cast<float>(static_cast<int64_t>(o.w_sums[n]) - c.cols * pi);
      }
      v = o.x_scales[t] * o.w_scales[n] * v;
      if (c.bias) v += o.bias[n];
      const size_t at = t * static_cast<size_t>(c.y_stride) + n;
      y[at] = bits(c.accumulate ? v + o.y[at] : v);
    }
  });
  return y;
}

template <typename T>
Buffer<T> Copy(const std::vector<T>& values) {
  return ToDevice(std::span<const T>(values));
}

template <typename Y>
std::vector<uint32_t> Run(const Case& c, const Operands& o, const std::vector<Y>& y) {
  const auto x = Copy(o.x.data);
  const auto w = Copy(o.ordered);
  const auto w_scales = Copy(o.w_scales), w_zeros = Copy(o.w_zeros), w_sums = Copy(o.w_sums);
  const auto x_scales = Copy(o.x_scales), x_zero_offsets = Copy(o.x_zero_offsets),
             bias = Copy(o.bias);
  const auto x_sums = Copy(o.x_sums);
  const auto out = Copy(y);
  GemmSm80({.x = x.data(),
            .x_scales = x_scales.data(),
            .x_zero_offsets = c.x_zero_offsets ? x_zero_offsets.data() : nullptr,
            .x_sums = x_sums.data(),
            .tokens = c.tokens,
            .a_bits = c.a_bits,
            .stride = o.stride,
            .w = w.data(),
            .w_kind = c.w_bits == 4 ? WeightKind::kNibbles : WeightKind::kBytes,
            .w_scales = w_scales.data(),
            .w_zeros = c.w_zeros ? w_zeros.data() : nullptr,
            .w_sums = w_sums.data(),
            .bias = c.bias ? bias.data() : nullptr,
            .rows = c.rows,
            .cols = c.cols,
            .y = out.data(),
            .y_stride = c.y_stride,
            .accumulate = c.accumulate,
            .y_type = c.y_type},
           nullptr);
  std::vector<Y> result(y.size());
  CheckCuda(cudaMemcpy(result.data(), out.data(), y.size() * sizeof(Y), cudaMemcpyDeviceToHost),
            "cudaMemcpy");
  std::vector<uint32_t> bits;
  for (const Y v : result) {
    bits.push_back(std::bit_cast<std::conditional_t<sizeof(Y) == 4, uint32_t, uint16_t>>(v));
  }
  return bits;
}

void ExpectProduct(Rng& rng, const Case& c) {
  SCOPED_TRACE(c.Text());
  const Operands o = RandomOperands(rng, c);
  const std::vector<uint32_t> expected = Expected(c, o);
  std::vector<uint32_t> actual;
  if (c.y_type == RealType::kFloat32) {
    actual = Run(c, o, o.y);
  } else {
    std::vector<uint16_t> y(o.y.size());
    std::transform(o.y.begin(), o.y.end(), y.begin(), Bf16FromF32);
    actual = Run(c, o, y);
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto stride = static_cast<size_t>(c.y_stride);
    ASSERT_EQ(actual[i], expected[i]) << "token " << i / stride << ", output " << i % stride;
  }
}

class GemmSm80Test : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "needs a GPU";
  }

  bool Flip() { return rng_.Below(2) == 0; }

  // A case with these bits and this shape; everything else is random.
  Case RandomCase(int w_bits, int a_bits, int64_t tokens, int64_t rows, int64_t cols) {
    Case c = {.w_bits = w_bits, .a_bits = a_bits, .w_zeros = Flip()};
    c.x_zero_offsets = !c.planes() && Flip();
    c.bias = Flip();
    c.y_type = Flip() ? RealType::kFloat32 : RealType::kBfloat16;
    c.accumulate = c.y_type == RealType::kFloat32 && Flip();
    c.tokens = tokens, c.rows = rows, c.cols = cols;
    c.y_stride = rows + static_cast<int64_t>(rng_.Below(9));
    if (Flip()) c.y_stride = (c.y_stride + 7) / 8 * 8;
    return c;
  }
  int64_t UpTo(int64_t max) {
    return 1 + static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(max)));
  }

  Rng rng_{11};
};

constexpr int kBits[][2] = {{4, 4}, {4, 8}, {8, 8},  {4, 3},
                            {8, 4}, {4, 6}, {4, 16}, {8, 16}};  // weights, activations
constexpr int kKinds = std::size(kBits);

TEST_F(GemmSm80Test, OddSizesAreBitEqual) {
  for (int i = 0; i < 180 && !HasFatalFailure(); ++i) {
    const auto& [w_bits, a_bits] = kBits[i % kKinds];
    const int64_t tokens = UpTo(300), rows = i % 5 == 0 ? 64 * UpTo(4) : UpTo(300);
    ExpectProduct(rng_, RandomCase(w_bits, a_bits, tokens, rows, 8 * UpTo(137)));
  }
}

// The longest rows that a loader lets pass.
TEST_F(GemmSm80Test, LargestSumsDoNotOverflow) {
  for (const auto& [w_bits, a_bits] : kBits) {
    Case c = RandomCase(w_bits, a_bits, 65, 70, 65792);
    c.lowest = true;
    ExpectProduct(rng_, c);
  }
}

// There are enough tiles for large ones to keep any GPU busy, and more than a band of them.
TEST_F(GemmSm80Test, LargeTilesAreBitEqual) {
  int multiprocessors = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
            cudaSuccess);
  for (int i = 0; i < 2 * kKinds && !HasFatalFailure(); ++i) {
    const auto& [w_bits, a_bits] = kBits[i % kKinds];
    const int64_t rows = 256 * ((2 * multiprocessors + 8) / 9) - UpTo(60);
    ExpectProduct(rng_, RandomCase(w_bits, a_bits, 1024 + UpTo(127), rows, 8 * UpTo(60)));
  }
}

}  // namespace
}  // namespace nibble::cuda
