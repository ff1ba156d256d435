// SPDX-License-Identifier: Apache-2.0
// Prepared inputs and products of the cuda backend against the reference backend. Integer products
// and plain codes must agree bit for bit, the rest within bounds derived below.
#include <algorithm>
#include <cstring>

#include "backends/cuda/device.h"
#include "backends/cuda_parity_testing.h"

namespace nibble {
namespace {

class CudaProductTest : public CudaParityTest {
 protected:
  // Codes of this backend mean the exact values up to half a step and `error` of the largest value
  // of a row; those outside of the grid are its ends.
  void CheckCodes(const Activations& a, const float* exact, double error) {
    const FormatSpec& format = a.format;
    const int64_t width = a.width, words = width / 4;
    const double half = 1 << (format.bits - 1);
    const auto read = [&]<typename T>(const T* from, T* to, int64_t count) {
      std::memcpy(to, cuda_->Read(reinterpret_cast<const float*>(from), count),
                  static_cast<size_t>(count) * sizeof(float));
    };
    for (int64_t t = 0; t < a.tokens; ++t) {
      std::vector<int8_t> codes(static_cast<size_t>(width));
      float scale = 0, zeta = 0;
      int32_t sum = 0;
      read(a.codes + t * a.stride, codes.data(), words);
      read(a.scales + t, &scale, 1), read(a.sums + t, &sum, 1);
      if (!format.symmetric) read(a.zetas + t, &zeta, 1);
      const std::span x(exact + t * width, static_cast<size_t>(width));
      const auto [lo, hi] = std::ranges::minmax(x);
      const double largest = std::max(-lo, hi);
      const double range = !format.symmetric     ? (hi - lo) / (2 * half - 1)
                           : format.signed_scale ? largest / half
                                                 : largest / (half - 1);
      ASSERT_NEAR(std::fabs(scale) / (range * format.clip), 1, 2 * error) << "token " << t;
      const auto [bottom, top] = std::minmax({scale * (zeta - half), scale * (zeta + half - 1)});
      for (int64_t i = 0; i < width; ++i) {
        const double value = std::clamp<double>(x[i], bottom, top);
        ASSERT_NEAR(scale * (codes[i] + zeta), value, 0.5 * std::fabs(scale) + error * largest)
            << width << ", " << FormatText(format) << ", token " << t << ", " << i;
        sum -= codes[i];
      }
      ASSERT_EQ(sum, 0);
    }
  }
};

struct ProductCase {
  FormatSpec weights, activation;
};

std::vector<ProductCase> ProductCases() {
  const FormatSpec a4 = {.bits = 4}, a8 = {.bits = 8};
  const FormatSpec a8_asym = {.bits = 8, .symmetric = false, .clip = 0.9};
  return {{{.bits = 4}, a4},
          {{.bits = 4}, {.bits = 4, .clip = 0.8, .signed_scale = true}},
          {{.bits = 4}, a8},
          {{.bits = 4, .symmetric = false}, a8_asym},
          {{.bits = 3}, a8_asym},
          {{.bits = 8}, a8},
          {{.bits = 6, .symmetric = false}, a4},
          {{.bits = 4, .group = 128, .second_level = true}, a8},
          {{.bits = 4, .symmetric = false, .group = 128, .second_level = true}, a8_asym},
          {{.bits = 3, .symmetric = false, .group = 256, .second_level = true}, a4},
          {{.bits = 4, .group = 32, .second_level = true}, a8},
          {{.bits = 4, .group = 128}, {.bits = 4, .group = 128}},
          {{.bits = 4, .group = 32}, {.bits = 4, .group = 32}},
          {{.bits = 4, .sparse = true}, a4},
          {{.bits = 8, .symmetric = false, .sparse = true}, a8_asym},
          {{.bits = 4, .group = 128, .sparse = true}, a8},
          {{.bits = 4, .symmetric = false, .group = 64}, a8_asym},
          {{.bits = 8}, {.bits = 8, .symmetric = false, .group = 256}}};
}

TEST_F(CudaProductTest, ProductsOfPlainCodesAreBitEqual) {
  for (const ProductCase& c : ProductCases()) {
    const bool groups = c.weights.group + c.activation.group != 0;
    for (const int64_t rows : {1, 63, 130, 256}) {
      const int64_t cols = c.weights.second_level ? 2560
                           : groups               ? 512
                           : rows % 2 == 0        ? 328
                                                  : 1000;
      const InputSpec input = {.width = cols, .activation = c.activation};
      const auto linear = RandomLinear(rng_, c.weights, rows, input, rows % 3 == 0);
      const LinearId id = cuda_->Upload(linear->packed), ref_id = ref_->Upload(linear->packed);
      for (const int64_t tokens : {1, 2, 9, 33, 64, 65, 130, 257}) {
        const bool accumulate = tokens % 2 == 1;
        const auto x = RandomRows(rng_, tokens, cols);
        auto y = accumulate ? RandomVector(rng_, tokens * rows)
                            : std::vector<float>(static_cast<size_t>(tokens * rows), kPoison);
        const Buffer<float> device_x = Copy(x), device_y = Copy(y);
        cuda_->Gemm(cuda_->PrepareActs({.x = device_x.data()}, tokens, input), id, device_y.data(),
                    rows, accumulate);
        ref_->Gemm(ref_->PrepareActs({.x = x.data()}, tokens, input), ref_id, y.data(), rows,
                   accumulate);
        ASSERT_EQ(Host(device_y.data(), tokens * rows), y)
            << FormatText(c.weights) << " x " << FormatText(c.activation) << ", " << tokens << " x "
            << rows << " x " << cols;
        // To intermediate values: the same, rounded once.
        Buffer<Intermediate> halves = CopyHalves(y);
        std::fill(y.begin(), y.end(), kPoison);
        const Backend::Projection to_halves = {id, halves.data()}, to_floats = {ref_id, Raw(y)};
        cuda_->Project(cuda_->PrepareActs({.x = device_x.data()}, tokens, input), {&to_halves, 1});
        ref_->Project(ref_->PrepareActs({.x = x.data()}, tokens, input), {&to_floats, 1});
        for (float& v : y) v = F32FromBf16(Bf16FromF32(v));
        ASSERT_EQ(HostHalves(halves.data(), tokens * rows), y) << tokens << " x " << rows;
      }
      cuda_->Release(id);
      ref_->Release(ref_id);
    }
  }
}

// Several linears in one launch change no bit.
TEST_F(CudaProductTest, ProjectionsAreProductsRoundedOnce) {
  constexpr int64_t kCols = 1352, kRows[] = {130, 1, 64, 300, 70};
  for (const bool symmetric : {true, false}) {
    const InputSpec input = {.width = kCols, .activation = {.bits = 4, .symmetric = symmetric}};
    std::vector<LinearId> ids;
    for (const int64_t rows : kRows) {  // the fourth cannot run with the others
      const FormatSpec format = {.bits = rows == 300 ? 8 : 4};
      ids.push_back(cuda_->Upload(RandomLinear(rng_, format, rows, input, false)->packed));
    }
    const Buffer<float> weight = Copy(RandomVector(rng_, kCols));
    for (const int64_t tokens : {1, 1, 12, 40, 65}) {
      const Buffer<float> x = Copy(RandomRows(rng_, tokens, kCols));
      const ActsSource norm = {.x = x.data(),
                               .op = ActsSource::Op::kRmsNorm,
                               .norm_weight = tokens == 12 ? nullptr : weight.data(),
                               .norm_eps = 1e-5f};
      std::vector<std::vector<float>> floats;
      std::vector<Buffer<Intermediate>> halves;
      std::vector<Backend::Projection> all;
      const Activations acts = cuda_->PrepareActs(norm, tokens, input);
      for (size_t i = 0; i < ids.size(); ++i) {
        std::vector<float> poison(static_cast<size_t>(tokens * kRows[i]), kPoison);
        halves.push_back(CopyHalves(poison));
        all.push_back({ids[i], halves.back().data()});
        const Buffer<float> y = Copy(poison);
        cuda_->Gemm(acts, ids[i], y.data(), kRows[i], false);
        floats.push_back(Host(y.data(), tokens * kRows[i]));
        for (float& v : floats.back()) v = F32FromBf16(Bf16FromF32(v));
      }
      cuda_->Project(cuda_->PrepareActs(norm, tokens, input), all);
      for (size_t i = 0; i < ids.size(); ++i) {
        ASSERT_EQ(HostHalves(halves[i].data(), tokens * kRows[i]), floats[i])
            << i << ", " << tokens;
      }
    }
  }
}

// Chains of cols + 1 roundings on either side.
TEST_F(CudaProductTest, FloatProductsAgree) {
  for (const auto& [bits, activation] :
       {std::pair{16, FormatSpec{}}, {4, FormatSpec{}}, {16, FormatSpec{.bits = 4}}}) {
    for (const int64_t rows : {1, 100, 257}) {
      const int64_t cols = 264;
      const InputSpec input = {.width = cols, .activation = activation};
      const auto linear = RandomLinear(rng_, {.bits = bits}, rows, input, true);
      const LinearId id = cuda_->Upload(linear->packed), ref_id = ref_->Upload(linear->packed);
      const Matrix<float> weights = Decode(linear->packed.weights);
      for (const int64_t tokens : {1, 8, 9, 70}) {
        const auto x = RandomVector(rng_, tokens * cols);
        std::vector<float> y(static_cast<size_t>(tokens * rows), kPoison);
        const Buffer<float> device_x = Copy(x), device_y = Copy(y);
        cuda_->Gemm(cuda_->PrepareActs({.x = device_x.data()}, tokens, input), id, device_y.data(),
                    rows, false);
        const Activations acts = ref_->PrepareActs({.x = x.data()}, tokens, input);
        ref_->Gemm(acts, ref_id, y.data(), rows, false);
        const float* values = ref_->Decode(acts);
        const std::vector<float> result = Host(device_y.data(), tokens * rows);
        for (int64_t i = 0; i < tokens * rows; ++i) {
          double size = 1;
          for (int64_t k = 0; k < cols; ++k) {
            size += std::fabs(double{values[i / rows * cols + k]} * weights.row(i % rows)[k]);
          }
          ASSERT_NEAR(result[i], y[i], 2 * static_cast<double>(cols + 2) * kUlp * size) << i;
        }
      }
      cuda_->Release(id);
      ref_->Release(ref_id);
    }
  }
}

// A transform rounds about log2(n) + 2 times on either side, a norm or silu(gate) * up some ten
// times. Dense factors take values as two bf16 terms, which lose up to 2^-18 of each; with the 1 /
// sqrt(order) of the transform these losses add up like noise, below 2^-18 of the largest value.
// Factors without a Hadamard order are chains of up to 107 fp32 multiply-adds, whose roundings add
// up like noise, too.
TEST_F(CudaProductTest, PreparedValuesAgree) {
  using Op = ActsSource::Op;
  for (const int64_t width : {64, 96, 448, 576, 896, 960, 1024, 1376, 1712, 11008, 13696, 14336}) {
    for (const Op op : {Op::kCopy, Op::kRmsNorm, Op::kSiluMul}) {
      for (const int64_t tokens : {1, 3, 300}) {
        InputSpec spec = {.width = width, .transform = FullHadamard(width)};
        if (width == 96) spec.transform = {.factors = FullHadamard(4).factors, .inner = 24};
        if (width == 576) spec.transform = {.factors = FlatFactors(9), .inner = 64};
        if (width == 896) spec.transform = {.factors = FlatFactors(14), .inner = 64};
        if (width == 960) spec.transform = {.factors = FlatFactors(15), .outer = 16, .inner = 4};
        if (width == 1712) spec.transform = Inverse(spec.transform);  // 107 x 16, not symmetric
        auto gate = RandomVector(rng_, tokens * width), up = RandomVector(rng_, tokens * width);
        const auto x = RandomVector(rng_, tokens * width), norm = RandomVector(rng_, width);
        const Buffer<float> device_x = Copy(x), device_norm = Copy(norm);
        const auto device_gate = CopyHalves(gate), device_up = CopyHalves(up);
        const Activations a = cuda_->PrepareActs({.x = device_x.data(),
                                                  .op = op,
                                                  .norm_weight = device_norm.data(),
                                                  .norm_eps = 1e-5f,
                                                  .gate = device_gate.data(),
                                                  .up = device_up.data()},
                                                 tokens, spec);
        const std::vector<float> values = Host(a.values, tokens * width);
        const Activations b = ref_->PrepareActs({.x = x.data(),
                                                 .op = op,
                                                 .norm_weight = norm.data(),
                                                 .norm_eps = 1e-5f,
                                                 .gate = Raw(gate),
                                                 .up = Raw(up)},
                                                tokens, spec);
        float largest = 0;
        for (int64_t i = 0; i < tokens * width; ++i) {
          largest = std::max(largest, std::fabs(b.values[i]));
        }
        for (int64_t i = 0; i < tokens * width; ++i) {
          ASSERT_NEAR(values[i], b.values[i], 64 * kUlp * largest)
              << width << ", op " << static_cast<int>(op) << ", " << tokens << " tokens, " << i;
        }
      }
    }
  }
}

// The law in fp32 is exact on either side, gate and up are rounded to bf16, and so is the result:
// 2^-9 of it, besides some ten roundings of silu, of which those of the exponent count |gate|
// times.
TEST_F(CudaProductTest, GatedProductsAgree) {
  constexpr int64_t kCols = 328;
  for (const int bits : {4, 8}) {
    const InputSpec input = {.width = kCols, .activation = {.bits = 4}};
    for (const int64_t rows : {8, 120, 328, 1003}) {  // not by eights: not in one product
      std::vector<LinearId> ids, ref_ids;
      for (int i = 0; i < 2; ++i) {
        const auto linear = RandomLinear(rng_, {.bits = bits}, rows, input, false);
        ids.push_back(cuda_->Upload(linear->packed)),
            ref_ids.push_back(ref_->Upload(linear->packed));
      }
      const InputSpec whole = {.width = rows};
      for (const int64_t tokens : {1, 65, 257, 700}) {
        const auto x = RandomRows(rng_, tokens, kCols);
        std::vector<float> gate(static_cast<size_t>(tokens * rows), kPoison), up = gate;
        const Buffer<float> device_x = Copy(x);
        Buffer<Intermediate> device_gate = CopyHalves(gate), device_up = CopyHalves(up);
        ActsSource source =
            cuda_->ProjectGated(cuda_->PrepareActs({.x = device_x.data()}, tokens, input),
                                {ids[0], device_gate.data()}, {ids[1], device_up.data()});
        const bool one_product = source.op == ActsSource::Op::kIntermediate;
        ASSERT_TRUE(!one_product || (rows % 8 == 0 && tokens > 64));
        const std::vector<float> y =
            rows % 8 == 0 ? Host(cuda_->PrepareActs(source, tokens, whole).values, tokens * rows)
                          : HostHalves(device_up.data(), tokens * rows);
        const Backend::Projection outputs[] = {{ref_ids[0], Raw(gate)}, {ref_ids[1], Raw(up)}};
        ref_->Project(ref_->PrepareActs({.x = x.data()}, tokens, input), outputs);
        for (size_t i = 0; i < y.size(); ++i) {
          const double g = F32FromBf16(Bf16FromF32(gate[i])), u = F32FromBf16(Bf16FromF32(up[i]));
          const double wanted = rows % 8 == 0 ? g / (1 + std::exp(-g)) * u : u;
          const double error = one_product ? 0x1p-8 : 16 * (1 + std::fabs(g)) * kUlp;
          ASSERT_NEAR(y[i], wanted, error * std::fabs(wanted) + 1e-30)
              << bits << " bits, " << tokens << " x " << rows << ", " << i;
        }
      }
      for (const LinearId id : ids) cuda_->Release(id);
    }
  }
}

// silu(gate) * up, or what a product has made of that, transformed in two products of fp16 where
// the GPU can: the values and the sums between the products lose up to 2^-11 of each. The transform
// is orthogonal, so the losses add up like noise, each below 2^-11 of the largest value.
TEST_F(CudaProductTest, CodesOfGatedTransformsAgree) {
  const FormatSpec formats[] = {{.bits = 4},
                                {.bits = 4, .clip = 0.8, .signed_scale = true},
                                {.bits = 8, .clip = 0.9},
                                {.bits = 4, .symmetric = false, .clip = 0.9}};
  for (const int64_t width : {4096, 8192, 11008, 13696, 14336, 18944, 28672}) {
    for (const int64_t tokens : {1, 5, 140}) {
      auto gate = RandomVector(rng_, tokens * width), up = RandomVector(rng_, tokens * width);
      for (float& v : up) v *= tokens == 5 ? 1e6f : 1;  // beyond fp16
      const auto device_gate = CopyHalves(gate), device_up = CopyHalves(up);
      ActsSource source = {.op = ActsSource::Op::kSiluMul, .gate = Raw(gate), .up = Raw(up)};
      InputSpec spec = {.width = width, .transform = FullHadamard(width)};
      const float* exact = ref_->PrepareActs(source, tokens, spec).values;
      source.gate = device_gate.data(), source.up = device_up.data();
      for (const FormatSpec& format : formats) {
        spec.activation = format;
        CheckCodes(cuda_->PrepareActs(source, tokens, spec), exact, 0x1p-10);
        if (HasFatalFailure()) return;
      }
      const auto plain = CopyHalves(gate);
      spec.activation = {};
      exact = ref_->PrepareActs({.x = gate.data()}, tokens, spec).values;
      spec.activation = formats[1];
      source = {.op = ActsSource::Op::kIntermediate, .values = plain.data()};
      CheckCodes(cuda_->PrepareActs(source, tokens, spec), exact, 0x1p-10);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaProductTest, InputScalesAreRefusedByName) {
  InputSpec input = {.width = 64, .scales = std::vector<float>(64, -1)};
  const auto linear = RandomLinear(rng_, {.bits = 4}, 8, input, false);
  EXPECT_THROW(cuda_->Upload(linear->packed), Error);
}

// Rows to experts and back: a product and a sum, each rounded once or both together.
TEST_F(CudaProductTest, RowsAreGatheredAndAdded) {
  constexpr int64_t kTokens = 40;
  const std::vector<int32_t> rows = {0, 3, 17, 38, 39};
  const std::vector<float> weights = {0.25f, 1, -0.7f, 0.01f, 3};
  for (const int64_t width : {64, 300, 4096}) {
    auto x = RandomVector(rng_, kTokens * width);
    const Buffer<float> device_x = Copy(x);
    Buffer<float> gathered(cuda_->allocator());
    gathered.Grow(5 * width);
    cuda_->Embed(
        {.rows = kTokens,
         .cols = width,
         .values = {DType::kF32, {kTokens, width}, reinterpret_cast<std::byte*>(device_x.data())}},
        rows, gathered.data());
    const std::vector<float> y = Host(gathered.data(), 5 * width);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto row = x.begin() + rows[i] * width;
      ASSERT_TRUE(std::equal(row, row + width, y.begin() + static_cast<int64_t>(i) * width));
    }
    cuda_->AddRows(gathered.data(), rows, weights, width, device_x.data());
    ref_->AddRows(y.data(), rows, weights, width, x.data());
    const std::vector<float> result = Host(device_x.data(), kTokens * width);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(result[i], x[i], 3 * std::fabs(x[i]) * 0x1p-23 + 0x1p-20) << i;
    }
  }
}

TEST_F(CudaProductTest, RowsOfATableAreThoseOfTheReference) {
  const std::vector<int32_t> ids = {0, 39, 17, 17, 3};
  for (const FormatSpec& format : {FormatSpec{.bits = 8}, FormatSpec{.bits = 4, .group = 32},
                                   FormatSpec{.bits = 6, .symmetric = false}, FormatSpec{}}) {
    const auto linear = RandomLinear(rng_, format, 40, {.width = 288}, false);
    AlignedBytes memory;
    Buffer<float> device(cuda_->allocator());
    device.Grow(5 * 288);
    const PackedWeights table = cuda_->Share(linear->packed.weights, memory);
    cuda_->Embed(table, ids, device.data());
    std::vector<float> expected(5 * 288, -1);
    ref_->Embed(linear->packed.weights, ids, expected.data());
    EXPECT_EQ(Host(device.data(), 5 * 288), expected) << FormatText(format);
  }
}

TEST_F(CudaProductTest, DecodedCodesAreBitEqual) {
  const FormatSpec formats[] = {{.bits = 4},
                                {.bits = 8, .symmetric = false, .group = 128},
                                {.bits = 4, .clip = 0.8, .signed_scale = true},
                                {.bits = 8, .group = 128, .signed_scale = true}};
  for (const FormatSpec& format : formats) {
    const InputSpec input = {.width = 384, .activation = format};
    const auto x = RandomRows(rng_, 9, 384);
    const Buffer<float> device_x = Copy(x);
    const float* ours = cuda_->Decode(cuda_->PrepareActs({.x = device_x.data()}, 9, input));
    const float* exact = ref_->Decode(ref_->PrepareActs({.x = x.data()}, 9, input));
    ASSERT_EQ(Host(ours, 9 * 384), std::vector<float>(exact, exact + 9 * 384));
  }
}

// Gathered rows in two parts: bit for bit where both are integers, in fp32 and as intermediate
// values; with a product in fp32 within the roundings of its chain.
TEST_F(CudaProductTest, TailsAgree) {
  const FormatSpec a4 = {.bits = 4}, a8 = {.bits = 8}, dense = {.bits = 16};
  const FormatSpec groups = {.bits = 4, .group = 128, .clip = 0.9};
  const TailCase cases[] = {{a4, a4, a8, a8},
                            {a4, {.bits = 4, .symmetric = false}, a8, a8},
                            {groups, groups, a8, a8},
                            {a8, {.bits = 8, .symmetric = false}, dense, dense},
                            {a4, dense, dense, dense}};
  for (const TailCase& c : cases) {
    const bool exact = c.tail_activation.quantized();
    for (const int64_t rows : {1, 130}) {
      const int64_t tail = rows == 1 ? 8 : 96, width = 512 + tail;
      const InputSpec input = RandomTailedInput(rng_, c, width, tail);
      const auto linear =
          RandomTailedLinear(rng_, c.weights, c.tail_weights, rows, input, rows > 1);
      const LinearId id = cuda_->Upload(linear->packed), ref_id = ref_->Upload(linear->packed);
      for (const int64_t tokens : {1, 9, 70}) {
        const auto x = RandomVector(rng_, tokens * width);
        auto y = RandomVector(rng_, tokens * rows), start = y;
        const Buffer<float> device_x = Copy(x), device_y = Copy(y);
        const Activations acts = cuda_->PrepareActs({.x = device_x.data()}, tokens, input);
        cuda_->Gemm(acts, id, device_y.data(), rows, true);
        const std::vector<float> decoded = Host(cuda_->Decode(acts), tokens * width);
        const Activations ref_acts = ref_->PrepareActs({.x = x.data()}, tokens, input);
        ref_->Gemm(ref_acts, ref_id, y.data(), rows, true);
        const float* values = ref_->Decode(ref_acts);
        ASSERT_TRUE(std::equal(decoded.begin(), decoded.end(), values));
        // |sum of products| of normal inputs and weights below 0.1 * 128, or normal ones.
        const double bound = exact ? 0 : static_cast<double>(2 * width + 8) * kUlp * 200 * width;
        const std::vector<float> result = Host(device_y.data(), tokens * rows);
        for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(result[i], y[i], bound) << i;
        Buffer<Intermediate> halves = CopyHalves(start);
        const Backend::Projection to_halves = {id, halves.data()}, to_floats = {ref_id, Raw(y)};
        cuda_->Project(cuda_->PrepareActs({.x = device_x.data()}, tokens, input), {&to_halves, 1});
        ref_->Project(ref_->PrepareActs({.x = x.data()}, tokens, input), {&to_floats, 1});
        const std::vector<float> narrow = HostHalves(halves.data(), tokens * rows);
        for (size_t i = 0; i < y.size(); ++i) {
          const float wanted = F32FromBf16(Bf16FromF32(y[i]));
          ASSERT_NEAR(narrow[i], wanted, exact ? 0 : bound + std::fabs(wanted) * 0x1p-7) << i;
        }
      }
      cuda_->Release(id);
      ref_->Release(ref_id);
    }
  }
}

// Steps of two callers whose batches have one shape, on memory that moves; each is launched,
// recorded and played.
TEST_F(CudaProductTest, RecordedStepsFollowTheirMemory) {
  constexpr int64_t kCount = 256;
  const SequenceSlice step = {.tokens = 1};
  const OpsId ids[2];
  Buffer<float> x[2];
  const Buffer<float> y = Copy(RandomVector(rng_, kCount));
  for (int64_t growth = 1; growth <= 4; ++growth) {
    for (auto& buffer : x) buffer = Copy(RandomVector(rng_, growth * kCount));
    for (int i = 0; i < 6; ++i) {
      const float* from = x[i % 2].data();
      cuda_->Run(ids[i % 2], {&step, 1}, [&] { cuda_->Copy(from, kCount, y.data()); });
      EXPECT_EQ(Host(y.data(), kCount), Host(from, kCount)) << growth << ", " << i;
    }
  }
}

TEST_F(CudaProductTest, OnlyFreedMemoryEndsRecordings) {
  const uint64_t frees = cuda::DeviceFrees();
  AlignedBytes page = cuda_->Allocate(1 << 20);
  EXPECT_EQ(cuda::DeviceFrees(), frees);
  page.reset();
  EXPECT_EQ(cuda::DeviceFrees(), frees + 1);
}

}  // namespace
}  // namespace nibble
