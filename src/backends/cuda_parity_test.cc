// SPDX-License-Identifier: Apache-2.0
// Tests of what only a GPU has, against the reference backend: transforms in fp16, and memory of
// its own.
#include <algorithm>
#include <cstring>

#include "backends/cuda/runtime/device.h"
#include "backends/parity_testing.h"

namespace nibble {
namespace {

class CudaTest : public GpuParityTest {
 protected:
  // Expects this backend's codes to mean the exact values up to half a step and `error` of the
  // row's largest value; values outside of the grid become its ends.
  void CheckCodes(const Activations& a, const float* exact, double error) {
    const FormatSpec& format = a.format;
    const int64_t width = a.width, words = width / 4;
    const double half = 1 << (format.bits - 1);
    const auto read = [&]<typename T>(const T* from, T* to, int64_t count) {
      std::memcpy(to, ours_->Read(reinterpret_cast<const float*>(from), count),
                  static_cast<size_t>(count) * sizeof(float));
    };
    for (int64_t t = 0; t < a.tokens; ++t) {
      std::vector<int8_t> codes(static_cast<size_t>(width));
      float scale = 0, zero_offset = 0;
      int32_t sum = 0;
      read(a.codes + t * a.stride, codes.data(), words);
      read(a.scales + t, &scale, 1), read(a.sums + t, &sum, 1);
      if (!format.symmetric) read(a.zero_offsets + t, &zero_offset, 1);
      const std::span x(exact + t * width, static_cast<size_t>(width));
      const auto [lo, hi] = std::ranges::minmax(x);
      const double largest = std::max(-lo, hi);
      const double range = !format.symmetric     ? (hi - lo) / (2 * half - 1)
                           : format.signed_scale ? largest / half
                                                 : largest / (half - 1);
      ASSERT_NEAR(std::fabs(scale) / (range * format.clip), 1, 2 * error)
          << width << ", " << FormatText(format) << ", token " << t << " of " << a.tokens;
      const auto [bottom, top] =
          std::minmax({scale * (zero_offset - half), scale * (zero_offset + half - 1)});
      for (int64_t i = 0; i < width; ++i) {
        const double value = std::clamp<double>(x[i], bottom, top);
        ASSERT_NEAR(scale * (codes[i] + zero_offset), value,
                    0.5 * std::fabs(scale) + error * largest)
            << width << ", " << FormatText(format) << ", token " << t << ", " << i;
        sum -= codes[i];
      }
      ASSERT_EQ(sum, 0);
    }
  }

  // CheckCodes with transforms of every precision: fp16 loses up to 2^-11 of the largest value
  // twice (CodesOfGatedTransformsAgree), and fp32 with gates and norms far less than 2^-18.
  void CheckPrecisions(const ActsSource& source, int64_t tokens, InputSpec spec,
                       const FormatSpec& format, const float* exact) {
    spec.activations = format;
    for (const int bits : {0, 16, 32}) {
      spec.transform_bits = bits;
      CheckCodes(ours_->PrepareActs(source, tokens, spec), exact, bits == 32 ? 0x1p-18 : 0x1p-10);
      if (HasFatalFailure()) FAIL() << bits << " bits";
    }
  }

  // Compares a row decoded from codes with the exact one; see CodesOfTransformedPartsAgree. Rows
  // without parts may pass tensor cores in fp16 (CodesOfGatedTransformsAgree), if not asked for
  // another precision.
  static void CheckParts(const InputSpec& spec, std::span<const float> row, const float* decoded) {
    const auto magnitude = [](float v, float w) { return std::fabs(v) < std::fabs(w); };
    const double row_largest = std::fabs(*std::ranges::max_element(row, magnitude));
    const double fine = 6 * 0x1p-18 + 16 * kUlp * row_largest;  // PreparedValuesAgree
    const bool halves = spec.transform_bits == 16 || (spec.transform_bits == 0 && !spec.tail_width);
    const double error = halves ? 0x1p-10 * row_largest : fine;
    for (int64_t first = 0; first < spec.width;) {
      const bool in_tail = first >= spec.main_width();
      const FormatSpec& part = in_tail ? spec.tail_activations : spec.activations;
      const int64_t count = in_tail          ? spec.tail_width
                            : part.group > 0 ? part.group
                                             : spec.main_width();
      std::vector<float> exact;
      for (int64_t i = first; i < first + count; ++i) {
        exact.push_back(row[spec.gather.empty() ? i : spec.gather[static_cast<size_t>(i)]]);
      }
      const auto [lo, hi] = std::ranges::minmax(exact);
      const double half = 1 << (part.bits - 1), largest = std::max(-lo, hi);
      const double step = !part.quantized()   ? 0
                          : !part.symmetric   ? (hi - lo) / (2 * half - 1)
                          : part.signed_scale ? largest / half
                                              : largest / (half - 1);
      // With a signed scale, the side without the largest value ends a step earlier; if both ends
      // are equally large, that may be either side.
      const bool below = -lo > hi, tie = part.signed_scale && std::fabs(lo + hi) <= 2 * error;
      const double bottom = part.signed_scale && !below ? -(half - 1) * step : lo,
                   top = part.signed_scale && below ? (half - 1) * step : hi;
      for (int64_t i = 0; i < count; ++i) {
        const double wanted = std::clamp<double>(exact[static_cast<size_t>(i)], bottom, top);
        ASSERT_NEAR(decoded[first + i], wanted, (tie ? 1 : 0.5) * step + 2 * error)
            << spec.width << ", " << FormatText(part) << ", " << spec.tail_width << ", "
            << first + i;
      }
      first += count;
    }
  }

  // Expects products of 1 to 512 tokens to be those of the reference; `error`: allowed, relative to
  // the norm of a token's outputs.
  void ExpectProducts(const FormatSpec& format, const FormatSpec& activations, int64_t rows,
                      int64_t cols, double error = 0) {
    const InputSpec input = {.width = cols, .activations = activations};
    ExpectProducts(RandomLinear(rng_, format, rows, input, true)->packed, error);
  }
  void ExpectProducts(const PackedLinear& linear, double error) {
    const FormatSpec& format = linear.weights.format;
    const InputSpec& input = linear.input;
    const int64_t rows = linear.weights.rows, cols = linear.weights.cols;
    const LinearId id = ours_->Upload(linear), ref_id = ref_->Upload(linear);
    for (const int64_t tokens : {1, 9, 40, 64, 140, 300, 512}) {
      const auto x = RandomRows(rng_, tokens, cols);
      std::vector<float> y(static_cast<size_t>(tokens * rows), kPoison);
      const Buffer<float> device_x = Copy(x), device_y = Copy(y);
      ours_->Gemm(ours_->PrepareActs({.x = device_x.data()}, tokens, input), id, device_y.data(),
                  rows, false);
      ref_->Gemm(ref_->PrepareActs({.x = x.data()}, tokens, input), ref_id, y.data(), rows, false);
      const auto host = Host(device_y.data(), tokens * rows);
      if (error == 0) {
        ASSERT_TRUE(host == y) << FormatText(format) << tokens;
      }
      for (int64_t t = 0; error > 0 && t < tokens; ++t) {
        double squares = 0, errors = 0;
        for (int64_t i = t * rows; i < (t + 1) * rows; ++i) {
          squares += double{y[i]} * y[i];
          errors += (double{host[i]} - y[i]) * (double{host[i]} - y[i]);
        }
        ASSERT_LE(std::sqrt(errors / squares), error) << FormatText(format) << tokens;
      }
    }
    ours_->Release(id);
    ref_->Release(ref_id);
  }
};

// silu(gate) * up, or that as a product has written it, transformed in two products of fp16 where
// the GPU can: the values and the sums between the products lose up to 2^-11 of each. The transform
// is orthogonal, so the losses add up like noise, each below 2^-11 of the largest value.
TEST_F(CudaTest, CodesOfGatedTransformsAgree) {
  const FormatSpec formats[] = {{.bits = 4},
                                {.bits = 4, .clip = 0.8, .signed_scale = true},
                                {.bits = 8, .clip = 0.9},
                                {.bits = 4, .symmetric = false, .clip = 0.9}};
  for (const int64_t width : {4096, 6912, 8192, 8960, 11008, 13696, 13824, 14336, 15360, 17408,
                              18944, 25600, 27648, 28672}) {
    for (const int64_t tokens : {1, 5, 140}) {
      auto gate = RandomVector(rng_, tokens * width), up = RandomVector(rng_, tokens * width);
      for (float& v : up) v *= tokens == 5 ? 1e6f : 1;  // beyond fp16
      const auto device_gate = CopyValues(gate), device_up = CopyValues(up);
      ActsSource source = {.op = ActsSource::Op::kGated, .gate = Raw(gate), .up = Raw(up)};
      InputSpec spec = {.width = width, .transform = FullHadamard(width)};
      const float* exact = ref_->PrepareActs(source, tokens, spec).values;
      source.gate = device_gate.data(), source.up = device_up.data();
      for (const FormatSpec& format : formats) {
        CheckPrecisions(source, tokens, spec, format, exact);
        if (HasFatalFailure()) return;
      }
      const auto plain = CopyValues(gate);
      spec.activations = {};
      exact = ref_->PrepareActs({.x = gate.data()}, tokens, spec).values;
      source = {.op = ActsSource::Op::kIntermediate, .values = plain.data()};
      CheckPrecisions(source, tokens, spec, formats[1], exact);
      if (HasFatalFailure()) return;
    }
  }
}

// The same of fp32 rows behind a norm.
TEST_F(CudaTest, CodesOfNormedTransformsAgree) {
  const FormatSpec formats[] = {{.bits = 4, .clip = 0.8, .signed_scale = true},
                                {.bits = 8},
                                {.bits = 8, .symmetric = false, .clip = 0.9}};
  for (const int64_t width : {640, 2560, 3840, 4096, 5376, 8192}) {
    for (const int64_t tokens : {1, 5, 140}) {
      auto x = RandomVector(rng_, tokens * width);
      for (float& v : x) v *= tokens == 5 ? 1e6f : 1;  // beyond fp16
      const auto norm = RandomVector(rng_, width);
      const Buffer<float> device_x = Copy(x), device_norm = Copy(norm);
      for (const bool weighted : {true, false}) {
        ActsSource source = {.x = x.data(),
                             .op = ActsSource::Op::kRmsNorm,
                             .norm_weight = weighted ? norm.data() : nullptr,
                             .norm_eps = 1e-5f};
        InputSpec spec = {.width = width, .transform = FullHadamard(width)};
        const float* exact = ref_->PrepareActs(source, tokens, spec).values;
        source.x = device_x.data();
        source.norm_weight = weighted ? device_norm.data() : nullptr;
        for (const FormatSpec& format : formats) {
          CheckPrecisions(source, tokens, spec, format, exact);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Rows behind a norm, whole and in parts: a factor of some ten roundings is all that differs.
TEST_F(CudaTest, CodesBehindNormsAgree) {
  const FormatSpec formats[] = {{.bits = 4, .clip = 0.8, .signed_scale = true},
                                {.bits = 8, .clip = 0.9},
                                {.bits = 4, .symmetric = false, .clip = 0.9}};
  for (const int64_t width : {512, 4096, 8192, 11008}) {
    for (const int64_t tokens : {1, 16, 40}) {
      const auto x = RandomVector(rng_, tokens * width), norm = RandomVector(rng_, width);
      const Buffer<float> device_x = Copy(x), device_norm = Copy(norm);
      ActsSource source = {
          .x = x.data(), .op = ActsSource::Op::kRmsNorm, .norm_weight = norm.data()};
      InputSpec spec = {.width = width};
      const float* values = ref_->PrepareActs(source, tokens, spec).values;
      source.x = device_x.data(), source.norm_weight = device_norm.data();
      for (const int64_t tail : {0, 256}) {
        spec.tail_width = tail, spec.tail_activations = formats[1];
        const auto part = [&](int64_t first, int64_t columns) {
          std::vector<float> rows;
          for (int64_t t = 0; t < tokens; ++t) {
            const float* const row = values + t * width + first;
            rows.insert(rows.end(), row, row + columns);
          }
          return rows;
        };
        for (const FormatSpec& format : formats) {
          spec.activations = format;
          const Activations a = ours_->PrepareActs(source, tokens, spec);
          CheckCodes(a, part(0, width - tail).data(), 16 * kUlp);
          if (tail > 0) CheckCodes(*a.tail, part(width - tail, tail).data(), 16 * kUlp);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Transformed normal values as codes in groups, with 16 bits and in parts: off by half a step of
// the group, and by the errors of the transformed values and of the largest one, which gives the
// step.
TEST_F(CudaTest, CodesOfTransformedPartsAgree) {
  const FormatSpec formats[] = {{.bits = 4, .group = 128},
                                {.bits = 4, .symmetric = false, .group = 128},
                                {.bits = 8, .group = 128, .signed_scale = true},
                                {.bits = 8, .group = 32},
                                {.bits = 16}};
  for (const int64_t width : {1024, 4096, 8192, 11008, 14336}) {
    const TransformSpec across_heads = {.factors = FullHadamard(width / 128).factors, .inner = 128};
    for (const TransformSpec& transform : {FullHadamard(width), across_heads}) {
      for (const int64_t tokens : {1, 16, 70}) {
        auto gate = RandomVector(rng_, tokens * width);
        const auto device_gate = CopyValues(gate);
        InputSpec spec = {.width = width, .transform = transform};
        const float* values = ref_->PrepareActs({.x = gate.data()}, tokens, spec).values;
        const ActsSource source = {.op = ActsSource::Op::kIntermediate,
                                   .values = device_gate.data()};
        for (const FormatSpec& format : formats) {
          // Every precision, with and without a tail.
          for (const auto& [tail, bits] :
               {std::pair(0, 0), {0, 16}, {0, 32}, {256, 0}, {256, 16}}) {
            spec.activations = format, spec.tail_width = tail, spec.tail_activations = {.bits = 8};
            spec.transform_bits = bits;
            spec.gather = tail == 0 ? std::vector<int32_t>() : rng_.Permutation<int32_t>(width);
            const float* ours = ours_->Decode(ours_->PrepareActs(source, tokens, spec));
            const std::vector<float> decoded = Host(ours, tokens * width);
            for (int64_t t = 0; t < tokens; ++t) {
              CheckParts(spec, {values + t * width, static_cast<size_t>(width)},
                         decoded.data() + t * width);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

// More tiles than the blocks of a grid can take at once: whole tiles and halves, one after another;
// quarters for up to 64 tokens.
TEST_F(CudaTest, ProductsOfManyRoundsAreBitEqual) {
  ExpectProducts({.bits = 4}, {.bits = 8}, 17400, 328);
  ExpectProducts({.bits = 8, .sparse = true}, {.bits = 8}, 17400, 328);
  ExpectProducts({.bits = 8, .symmetric = false}, {.bits = 8, .symmetric = false}, 17400, 328);
  const FormatSpec levels = {.bits = 4, .symmetric = false, .group = 128, .second_level = true};
  ExpectProducts(levels, {.bits = 8}, 17400, 384);
}

// Fewer tiles than the GPU has blocks: the blocks of a cluster split the inputs and add up their
// sums, where the last split may have no inputs.
TEST_F(CudaTest, ProductsOfFewOutputsAreBitEqual) {
  for (const int64_t cols : {1160, 4104}) {
    ExpectProducts({.bits = 4}, {.bits = 8}, 300, cols);
    ExpectProducts({.bits = 8, .symmetric = false}, {.bits = 8, .symmetric = false}, 300, cols);
    ExpectProducts({.bits = 4}, {.bits = 16}, 300, cols);
  }
}
// With groups, sums are floats: 32 terms in any order, at most 32 roundings of 2^-24 on each side.
TEST_F(CudaTest, ProductsOfFewOutputsInGroupsAgree) {
  const double error = 64 * 0x1p-24;
  ExpectProducts({.bits = 4, .group = 128}, {.bits = 8}, 300, 4096, error);
  ExpectProducts({.bits = 4, .group = 128}, {.bits = 4, .group = 128}, 300, 4096, error);
}

// Two bf16 lack at most 2^-18 of an input or a weight, and the product of the second ones is left
// out: three times 2^-18 that add up like noise, and as much for up to 64 roundings of sums. One
// bf16 lacks up to 2^-9.
TEST_F(CudaTest, HalvesLackLittle) {
  for (const int64_t cols : {256, 1160}) {
    const InputSpec input = {.width = cols, .activations = {.bits = 16}};
    const auto linear = RandomLinear(rng_, {.bits = 16}, 300, input, true);
    ExpectProducts(linear->packed, 0x1p-16);
    const std::vector<float> values = RandomVector(rng_, 300 * cols);
    std::vector<uint16_t> halves;
    for (const float v : values) halves.push_back(F16FromF32(v));
    Tensor& weights = linear->packed.weights.values;
    weights = Tensor::Of(DType::kF16, weights.shape, std::move(halves));
    ExpectProducts(linear->packed, 0x1p-16);
    weights = Tensor::Of(DType::kF32, weights.shape, values);
    ExpectProducts(linear->packed, 0x1p-16);
  }
}

TEST_F(CudaTest, OnlyFreedMemoryEndsRecordings) {
  const uint64_t frees = cuda::DeviceFrees();
  AlignedBytes page = ours_->Allocate(1 << 20);
  EXPECT_EQ(cuda::DeviceFrees(), frees);
  page.reset();
  EXPECT_EQ(cuda::DeviceFrees(), frees + 1);
}

}  // namespace
}  // namespace nibble
