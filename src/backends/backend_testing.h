// SPDX-License-Identifier: Apache-2.0
// Random linears and caches for the tests of backends.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numbers>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "compute/backend.h"
#include "formats/packed_weights_testing.h"
#include "formats/quantizer.h"

namespace nibble {

inline constexpr double kUlp = 0x1p-24;  // relative error of one fp32 rounding

// fp32 as a CPU's intermediate values.
inline Intermediate* Raw(std::vector<float>& values) {
  return reinterpret_cast<Intermediate*>(values.data());
}
inline const Intermediate* Raw(const std::vector<float>& values) {
  return reinterpret_cast<const Intermediate*>(values.data());
}

inline std::vector<float> RandomVector(Rng& rng, int64_t count, double scale = 1) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = static_cast<float>(scale * rng.Normal());
  return x;
}

// Makes q lose nothing when q * scale * log2(e) is rounded to bf16, as matrix tiles take it.
inline void RoundQueries(const AttentionSpec& attention, std::vector<float>& q) {
  const float factor = attention.scale * std::numbers::log2e_v<float>;
  for (float& v : q) v = F32FromBf16(Bf16FromF32(v * factor)) / factor;
}

// Rows of normal numbers: shifted ones, one with an outlier, one constant, one zero.
inline std::vector<float> RandomRows(Rng& rng, int64_t rows, int64_t width) {
  std::vector<float> x = RandomVector(rng, rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = x.data() + r * width;
    if (r % 5 == 1) row[rng.Below(static_cast<uint64_t>(width))] = -40;
    for (int64_t i = 0; i < width; ++i) {
      if (r % 5 == 2) row[i] += 3;
      if (r % 5 == 3) row[i] = -0.75f;
      if (r % 11 == 4) row[i] = 0;
    }
  }
  return x;
}

// A linear and the memory its planes point to.
struct TestLinear {
  PackedLinear packed;
  PlaneVectors quantized;
  std::vector<float> bias;
  std::unique_ptr<TestLinear> tail;
};

// 16-bit weights are bf16, with 32 bits the same values in fp32. Codes take every value of their
// width, also -2^(bits-1).
inline std::unique_ptr<TestLinear> RandomLinear(Rng& rng, const FormatSpec& weights, int64_t rows,
                                                const InputSpec& input, bool bias) {
  auto linear = std::make_unique<TestLinear>();
  const int64_t cols = input.width;
  PackedWeights& packed = linear->packed.weights;
  if (weights.quantized()) {
    linear->quantized = RandomPlanes(rng, weights, rows, cols, int64_t{1} << (weights.bits - 1));
    packed = View(linear->quantized);
  } else {
    std::vector<uint16_t> values;
    for (float v : RandomVector(rng, rows * cols)) values.push_back(Bf16FromF32(v));
    packed.format = weights, packed.rows = rows, packed.cols = cols;
    packed.values = Tensor::Of(DType::kBf16, {rows, cols}, std::move(values));
    if (weights.bits == 32) {
      packed.values = Tensor::Of(DType::kF32, {rows, cols}, ToF32(packed.values).data);
    }
  }
  if (bias) {
    linear->bias = RandomVector(rng, rows);
    linear->packed.bias = {
        DType::kF32, {rows}, reinterpret_cast<const std::byte*>(linear->bias.data())};
  }
  linear->packed.input = input;
  ValidateLinear(linear->packed, "random linear");
  return linear;
}

struct TailCase {
  FormatSpec weights, activations, tail_weights, tail_activations;
};

// An input of `width`, gathered in random order, whose last `tail` columns have their own format.
inline InputSpec RandomTailedInput(Rng& rng, const TailCase& c, int64_t width, int64_t tail) {
  InputSpec input;
  input.width = width;
  input.gather = rng.Permutation<int32_t>(width);
  input.activations = c.activations;
  input.tail_width = tail;
  input.tail_activations = c.tail_activations;
  return input;
}

// RandomLinear with weights of another format for the tail of the input.
inline std::unique_ptr<TestLinear> RandomTailedLinear(Rng& rng, const FormatSpec& weights,
                                                      const FormatSpec& tail, int64_t rows,
                                                      const InputSpec& input, bool bias) {
  const InputSpec main = {.width = input.main_width(), .activations = input.activations};
  const InputSpec last = {.width = input.tail_width, .activations = input.tail_activations};
  auto linear = RandomLinear(rng, weights, rows, main, bias);
  linear->tail = RandomLinear(rng, tail, rows, last, false);
  linear->packed.tail = linear->tail->packed.weights;
  linear->packed.input = input;
  ValidateLinear(linear->packed, "random linear with a tail");
  return linear;
}

// Pages of one sequence, in a random order in memory and full of random bytes; those of the recent
// form, if the cache has one, in a second table.
class TestCache {
 public:
  TestCache(Rng& rng, const KvSpec& kv, int64_t positions)
      : kv_(kv), count_((positions + kPageTokens - 1) / kPageTokens) {
    const int64_t bytes = std::max(kv.page_bytes(), kv.Recent().page_bytes());
    const int64_t pages = count_ * tables();
    lines_.resize(static_cast<size_t>(pages * bytes / 64));
    for (Line& line : lines_) {
      for (std::byte& b : line.bytes) b = static_cast<std::byte>(rng.Next());
    }
    for (int64_t i = 0; i < pages; ++i) pages_.push_back(lines_.data()->bytes + i * bytes);
    rng.Shuffle(pages_);
  }
  TestCache(const TestCache&) = delete;

  // [tables][pages]
  std::span<std::byte* const> pages() const { return pages_; }
  int64_t tables() const { return kv_.recent_bits > 0 ? 2 : 1; }
  // `tokens` from `position` on, whose rows begin at `first_row`.
  SequenceSlice Slice(int64_t first_row, int64_t tokens, int64_t position) const {
    return {.first_row = first_row,
            .tokens = tokens,
            .position = position,
            .pages = pages_.data(),
            .tables = tables(),
            .table_pages = count_,
            .recent_table = tables() - 1};
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span<const Line>(lines_)); }
  // A second cache with the same content and page order.
  void CopyFrom(const TestCache& other) {
    lines_ = other.lines_;
    for (size_t i = 0; i < pages_.size(); ++i) {
      pages_[i] = lines_.data()->bytes + (other.pages_[i] - other.lines_.data()->bytes);
    }
  }

  // The decoded K or V row of one head at `position`, as a query at `query` reads it.
  std::vector<float> Row(bool key, int64_t head, int64_t position, int64_t query) const {
    const int64_t page = position / kPageTokens, own = query / kPageTokens;
    const bool recent = kv_.recent_bits > 0 && (page == 0 || page == own || page == own - 1);
    const KvSpec kv = recent ? kv_.Recent() : kv_;
    const FormatSpec& f = key ? kv.k : kv.v;
    const std::byte* block =
        pages_[static_cast<size_t>(page + (recent ? count_ : 0))] + head * kv.block_bytes();
    const int64_t token = position % kPageTokens;
    const auto* codes = reinterpret_cast<const uint8_t*>(block + (key ? 0 : kv.v_codes())) +
                        token * kv.row_bytes(f);
    const auto* params =
        reinterpret_cast<const uint16_t*>(block + (key ? kv.k_params() : kv.v_params())) +
        token * kv.params_per_row(f);
    std::vector<float> row(static_cast<size_t>(kv.head_dim));
    DequantizeKv(codes, params, f, row);
    return row;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  const KvSpec kv_;
  const int64_t count_;
  std::vector<Line> lines_;
  std::vector<std::byte*> pages_;
};

// Angles of any size; every position has its own.
inline RopeTable RandomRope(Rng& rng, int64_t positions, int64_t half) {
  RopeTable rope{Matrix<float>(positions, half), Matrix<float>(positions, half)};
  for (size_t i = 0; i < rope.cos.data.size(); ++i) {
    const double angle = 6.3 * rng.Uniform();
    rope.cos.data[i] = static_cast<float>(std::cos(angle));
    rope.sin.data[i] = static_cast<float>(std::sin(angle));
  }
  return rope;
}

// No rotation at all: appending stores k as it is.
inline RopeTable IdentityRope(int64_t positions, int64_t half) {
  RopeTable rope{Matrix<float>(positions, half), Matrix<float>(positions, half)};
  for (float& c : rope.cos.data) c = 1;
  return rope;
}

}  // namespace nibble
