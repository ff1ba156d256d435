// SPDX-License-Identifier: Apache-2.0
// The cuda backend against the reference backend. Integer products, plain codes and cache pages
// must agree bit for bit, the rest within bounds derived below. Needs a GPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "backends/backend_testing.h"
#include "backends/cuda/attention_fused.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/ref/ref_backend.h"

namespace nibble {
namespace {

constexpr float kPoison = -12345.678f;

class CudaParityTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "needs a GPU";
    cuda_ = MakeCudaBackend("cuda");
  }

  Buffer<float> Copy(std::span<const float> values) { return ToBackend(*cuda_, values); }
  std::vector<float> Host(const float* values, int64_t count) {
    const float* host = cuda_->Read(values, count);
    return {host, host + count};
  }
  // Intermediate values of the GPU, bf16, and what of fp32 they keep.
  Buffer<Intermediate> CopyHalves(std::vector<float>& values) {
    std::vector<uint16_t> halves;
    for (float& v : values) {
      halves.push_back(Bf16FromF32(v));
      v = F32FromBf16(halves.back());
    }
    if (halves.size() % 2 == 1) halves.push_back(0);  // HostHalves reads in pairs
    Buffer<Intermediate> buffer(cuda_->allocator());
    const size_t bytes = halves.size() * sizeof(halves[0]);
    cuda_->Write(halves.data(), bytes, buffer.Grow(static_cast<int64_t>(bytes)));
    return buffer;
  }
  std::vector<float> HostHalves(const Intermediate* values, int64_t count) {
    const float* host = cuda_->Read(reinterpret_cast<const float*>(values), (count + 1) / 2);
    std::vector<float> result;
    for (int64_t i = 0; i < count; ++i) {
      result.push_back(F32FromBf16(reinterpret_cast<const uint16_t*>(host)[i]));
    }
    return result;
  }

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
      const double range = format.symmetric ? largest / (half - 1) : (hi - lo) / (2 * half - 1);
      ASSERT_NEAR(scale / (range * format.clip), 1, 2 * error) << "token " << t;
      for (int64_t i = 0; i < width; ++i) {
        const double value =
            std::clamp<double>(x[i], scale * (zeta - half), scale * (zeta + half - 1));
        ASSERT_NEAR(scale * (codes[i] + zeta), value, 0.5 * scale + error * largest)
            << width << ", " << FormatText(format) << ", token " << t << ", " << i;
        sum -= codes[i];
      }
      ASSERT_EQ(sum, 0);
    }
  }

  Rng rng_{7};
  std::unique_ptr<Backend> cuda_;
  const std::unique_ptr<Backend> ref_ = MakeRefBackend(RefMode::kInteger);
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
          {{.bits = 4, .group = 128}, {.bits = 4, .group = 128}},
          {{.bits = 4, .symmetric = false, .group = 64}, a8_asym},
          {{.bits = 8}, {.bits = 8, .symmetric = false, .group = 256}}};
}

TEST_F(CudaParityTest, ProductsOfPlainCodesAreBitEqual) {
  for (const ProductCase& c : ProductCases()) {
    const bool groups = c.weights.group + c.activation.group != 0;
    for (const int64_t rows : {1, 63, 130, 256}) {
      const int64_t cols = groups ? 512 : rows % 2 == 0 ? 328 : 1000;
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
TEST_F(CudaParityTest, ProjectionsAreProductsRoundedOnce) {
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
TEST_F(CudaParityTest, FloatProductsAgree) {
  for (const int bits : {16, 4}) {
    for (const int64_t rows : {1, 100, 257}) {
      const int64_t cols = 264;
      const InputSpec input = {.width = cols};
      const auto linear = RandomLinear(rng_, {.bits = bits}, rows, input, true);
      const LinearId id = cuda_->Upload(linear->packed), ref_id = ref_->Upload(linear->packed);
      const Matrix<float> weights = Decode(linear->packed.weights);
      for (const int64_t tokens : {1, 8, 9, 70}) {
        const auto x = RandomVector(rng_, tokens * cols);
        std::vector<float> y(static_cast<size_t>(tokens * rows), kPoison);
        const Buffer<float> device_x = Copy(x), device_y = Copy(y);
        cuda_->Gemm(cuda_->PrepareActs({.x = device_x.data()}, tokens, input), id, device_y.data(),
                    rows, false);
        ref_->Gemm(ref_->PrepareActs({.x = x.data()}, tokens, input), ref_id, y.data(), rows,
                   false);
        const std::vector<float> result = Host(device_y.data(), tokens * rows);
        for (int64_t i = 0; i < tokens * rows; ++i) {
          double size = 1;
          for (int64_t k = 0; k < cols; ++k) {
            size += std::fabs(double{x[i / rows * cols + k]} * weights.row(i % rows)[k]);
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
TEST_F(CudaParityTest, PreparedValuesAgree) {
  using Op = ActsSource::Op;
  for (const int64_t width : {64, 96, 448, 1024, 1376, 11008, 14336}) {
    for (const Op op : {Op::kCopy, Op::kRmsNorm, Op::kSiluMul}) {
      for (const int64_t tokens : {1, 3, 300}) {
        InputSpec spec = {.width = width, .transform = FullHadamard(width)};
        if (width == 96) spec.transform = {.factors = FullHadamard(4).factors, .inner = 24};
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

// silu(gate) * up, transformed in two products of fp16 where the GPU can: the values and the sums
// between the products lose up to 2^-11 of each. The transform is orthogonal, so the losses add up
// like noise, each below 2^-11 of the largest value.
TEST_F(CudaParityTest, CodesOfGatedTransformsAgree) {
  const FormatSpec formats[] = {
      {.bits = 4}, {.bits = 8, .clip = 0.9}, {.bits = 4, .symmetric = false, .clip = 0.9}};
  for (const int64_t width : {4096, 8192, 11008, 14336, 18944, 28672}) {
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
    }
  }
}

TEST_F(CudaParityTest, DecodedCodesAreBitEqual) {
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

struct TailCase {
  FormatSpec weights, activation, tail_weights, tail_activation;
};

// Gathered rows in two parts: bit for bit where both are integers, in fp32 and as intermediate
// values; with a product in fp32 within the roundings of its chain.
TEST_F(CudaParityTest, TailsAgree) {
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
      InputSpec input;
      input.width = width;
      input.gather = RandomPermutation(rng_, width);
      input.activation = c.activation;
      input.tail_width = tail;
      input.tail_activation = c.tail_activation;
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

struct CacheCase {
  FormatSpec k, v;
  int64_t kv_heads, group, head_dim;
};

const CacheCase kCacheCases[] = {
    {{.bits = 4, .symmetric = false, .clip = 0.95}, {.bits = 4, .symmetric = false}, 2, 1, 128},
    {{.bits = 4, .symmetric = false}, {.bits = 4, .symmetric = false}, 1, 4, 64},
    {{.bits = 4, .symmetric = false}, {.bits = 4}, 3, 5, 64},
    {{.bits = 4}, {.bits = 8}, 3, 2, 96},
    {{.bits = 3, .symmetric = false, .group = 32}, {.bits = 16}, 2, 7, 64},
    {{.bits = 16}, {.bits = 2, .symmetric = false}, 1, 1, 80},
    {{.bits = 4, .symmetric = false}, {.bits = 4, .symmetric = false}, 1, 8, 256},
};

// A cache in the GPU's memory behind the page table of a second layer.
class DeviceCache {
 public:
  DeviceCache(Backend& backend, const TestCache& cache, const KvSpec& kv, int64_t positions)
      : backend_(backend), bytes_(cache.bytes().size()) {
    memory_ = backend.Allocate(bytes_);
    backend.Write(cache.bytes().data(), bytes_, memory_.get());
    std::vector<std::byte*> pages;
    for (int64_t p = 0; p * kPageTokens < positions; ++p) {
      pages.push_back(memory_.get() + (cache.pages()[p] - cache.bytes().data()) - kv.page_bytes());
    }
    table_ = backend.Allocate(pages.size() * sizeof(pages[0]));
    backend.Write(pages.data(), pages.size() * sizeof(pages[0]), table_.get());
  }
  std::byte* const* pages() const { return reinterpret_cast<std::byte* const*>(table_.get()); }
  std::span<const std::byte> bytes() const {
    const float* host = backend_.Read(reinterpret_cast<const float*>(memory_.get()),
                                      static_cast<int64_t>(bytes_ / sizeof(float)));
    return {reinterpret_cast<const std::byte*>(host), bytes_};
  }

 private:
  Backend& backend_;
  size_t bytes_;
  AlignedBytes memory_, table_;
};

class CudaCacheTest : public CudaParityTest {
 protected:
  static constexpr int64_t kPositions = 201;
  void Make(const CacheCase& c, int64_t positions = kPositions) {
    kv_ = {.kv_heads = c.kv_heads, .head_dim = c.head_dim, .k = c.k, .v = c.v};
    spec_ = {.heads = c.kv_heads * c.group, .scale = 1 / std::sqrt(static_cast<float>(c.head_dim))};
    q_ = RandomVector(rng_, positions * spec_.heads * c.head_dim);
    k_ = RandomVector(rng_, positions * c.kv_heads * c.head_dim);
    v_ = RandomRows(rng_, positions * c.kv_heads, c.head_dim);
  }
  // How far a row of attention may be off: see AttentionAgreesOverTheSamePages.
  double Bound(const TestCache& cache, int64_t token, int64_t head) const {
    const int64_t d = kv_.head_dim, kv_head = head / (spec_.heads / kv_.kv_heads);
    const float* q = q_.data() + (token * spec_.heads + head) * d;
    double size = 0, largest = 0;
    for (int64_t j = 0; j <= token; ++j) {
      const auto k = cache.Row(true, kv_head, j), v = cache.Row(false, kv_head, j);
      double score = 0;
      for (int64_t i = 0; i < d; ++i) {
        score += std::fabs(double{q[i]} * k[i]);
        largest = std::max(largest, std::fabs(double{v[i]}));
      }
      size = std::max(size, score * spec_.scale);
    }
    return 2 * largest * (2 * size * 0x1p-11 + 0x1p-10);
  }
  // The rows from `first` on within the bound, those before it untouched.
  void CheckRows(const TestCache& cache, int64_t first, const std::vector<float>& result,
                 const std::vector<float>& expected) {
    const int64_t d = kv_.head_dim;
    for (int64_t row = 0; row < kPositions * spec_.heads; ++row) {
      const int64_t token = row / spec_.heads;
      if (token >= first && row % 7 != 0) continue;
      const double bound = token < first ? 0 : Bound(cache, token, row % spec_.heads);
      for (int64_t i = row * d; i < (row + 1) * d; ++i) {
        ASSERT_NEAR(result[i], expected[i], bound) << "token " << token << " row " << row;
      }
    }
  }
  std::vector<float> Fused(cuda::FusedAttention& fused, const TestCache& cache);

  KvSpec kv_;
  AttentionSpec spec_;
  std::vector<float> q_, k_, v_;
};

TEST_F(CudaCacheTest, AppendedPagesAreBitEqual) {
  for (const CacheCase& c : kCacheCases) {
    Make(c);
    const bool part = c.group == 4;  // some models turn only a part of the head
    if (c.head_dim != 80) kv_.rotation = FullHadamard(c.head_dim);  // 5 * 16 has no such matrix
    const TestCache cache(rng_, kv_, kPositions);
    const DeviceCache device(*cuda_, cache, kv_, kPositions);
    const RopeTable rope = RandomRope(rng_, kPositions, c.head_dim / (part ? 4 : 2));
    const BackendRope device_rope(*cuda_, rope);
    const auto q = CopyHalves(q_), k = CopyHalves(k_), v = CopyHalves(v_);
    for (int64_t at = 0, step = 1; at < kPositions; at += step, step = step * 2 % 61) {
      step = std::min(step, kPositions - at);
      const SequenceSlice slice = {.first_row = at,
                                   .tokens = step,
                                   .position = at,
                                   .pages = device.pages(),
                                   .offset = kv_.page_bytes()};
      cuda_->RopeAndAppend(q.data(), k.data(), v.data(), spec_, device_rope.view(), kv_,
                           {&slice, 1});
    }
    const SequenceSlice all = {.tokens = kPositions, .pages = cache.pages()};
    ref_->RopeAndAppend(Raw(q_), Raw(k_), Raw(v_), spec_, rope, kv_, {&all, 1});
    for (float& x : q_) x = F32FromBf16(Bf16FromF32(x));
    ASSERT_EQ(HostHalves(q.data(), static_cast<int64_t>(q_.size())), q_);
    ASSERT_TRUE(std::ranges::equal(device.bytes(), cache.bytes()))
        << FormatText(c.k) << ", " << FormatText(c.v);
  }
}

// q and the weights are fp16 at least, 2^-11 of each: a score is off by scale * sum|q k| of that
// and a weight relatively by as much; both move the mean of values by twice their error.
TEST_F(CudaCacheTest, AttentionAgreesOverTheSamePages) {
  for (const CacheCase& c : kCacheCases) {
    Make(c);
    const TestCache cache(rng_, kv_, kPositions);
    SequenceSlice all = {.tokens = kPositions, .pages = cache.pages()};
    const RopeTable rope = RandomRope(rng_, kPositions, c.head_dim / 2);
    ref_->RopeAndAppend(Raw(q_), Raw(k_), Raw(v_), spec_, rope, kv_, {&all, 1});
    const DeviceCache device(*cuda_, cache, kv_, kPositions);
    const auto q = CopyHalves(q_);
    for (const int64_t window : {0, 1, 17, 100}) {
      spec_.sliding_window = window;
      // A whole prompt, a chunk behind it, one decoded token.
      for (const int64_t first : {int64_t{0}, int64_t{70}, kPositions - 1}) {
        SequenceSlice slice = {.first_row = first,
                               .tokens = kPositions - first,
                               .position = first,
                               .pages = device.pages(),
                               .offset = kv_.page_bytes()};
        const Buffer<float> out = Copy(std::vector<float>(q_.size(), kPoison));
        cuda_->Attention(q.data(), spec_, kv_, {&slice, 1}, out.data());
        const std::vector<float> result = Host(out.data(), static_cast<int64_t>(q_.size()));
        slice.pages = cache.pages(), slice.offset = 0;
        std::vector<float> expected(q_.size(), kPoison);
        ref_->Attention(Raw(q_), spec_, kv_, {&slice, 1}, expected.data());
        CheckRows(cache, first, result, expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// By cuDNN, all tokens as one batch: chunks of one sequence, more than run together. No values if
// cuDNN cannot.
std::vector<float> CudaCacheTest::Fused(cuda::FusedAttention& fused, const TestCache& cache) {
  const SequenceSlice all = {.tokens = kPositions, .pages = cache.pages()};
  const RopeTable rope = RandomRope(rng_, kPositions, kv_.head_dim / 2);
  ref_->RopeAndAppend(Raw(q_), Raw(k_), Raw(v_), spec_, rope, kv_, {&all, 1});
  const DeviceCache device(*cuda_, cache, kv_, kPositions);
  const auto q = CopyHalves(q_);
  const Buffer<float> out = Copy(std::vector<float>(q_.size(), kPoison));
  std::vector<cuda::SequenceOnDevice> batch;
  const int64_t begins[] = {0, 1, 30, 70, 150, kPositions};
  for (size_t i = 0; i + 1 < std::size(begins); ++i) {
    batch.push_back({begins[i], begins[i + 1] - begins[i], begins[i], device.pages()});
  }
  const auto on_device = cuda::ToDevice(std::span<const cuda::SequenceOnDevice>(batch));
  const cuda::AttentionArguments arguments = {
      .q = q.data(),
      .out = const_cast<float*>(out.data()),
      .type = cuda::kIntermediate,
      .q_stride = spec_.heads * kv_.head_dim,
      .heads = static_cast<int>(spec_.heads),
      .scale = spec_.scale,
      .sliding_window = static_cast<int>(spec_.sliding_window),
      .kv = cuda::LayoutOf(kv_, kv_.page_bytes()),
      .batch = on_device.data(),
      .sequences = static_cast<int>(batch.size())};
  if (!fused.Builds(arguments, batch)) return {};
  fused.Run(arguments, batch, nullptr);
  return Host(out.data(), static_cast<int64_t>(q_.size()));
}

// The same bound: outputs are rounded to fp16 as well, but weights only where they meet values.
// Infinities that an unquantized cache has left in working memory must not matter.
TEST_F(CudaCacheTest, FusedAttentionAgreesOverTheSamePages) {
  cuda::FusedAttention fused;
  Make({{.bits = 16}, {.bits = 16}, 2, 1, 256});
  for (float& x : k_) x *= 1e30f;
  for (float& x : v_) x *= 1e30f;
  if (Fused(fused, TestCache(rng_, kv_, kPositions)).empty()) GTEST_SKIP() << "needs cuDNN";
  for (const CacheCase& c : kCacheCases) {
    for (const int64_t window : {0, 17}) {
      Make(c);
      spec_.sliding_window = window;
      const TestCache cache(rng_, kv_, kPositions);
      const std::vector<float> result = Fused(fused, cache);
      ASSERT_EQ(result.size(), q_.size()) << "head_dim " << c.head_dim;
      const SequenceSlice all = {.tokens = kPositions, .pages = cache.pages()};
      std::vector<float> expected(q_.size(), kPoison);
      ref_->Attention(Raw(q_), spec_, kv_, {&all, 1}, expected.data());
      CheckRows(cache, 0, result, expected);
      if (HasFatalFailure()) return;
    }
  }
}

// A prompt so long that cuDNN takes it, if it is there, and the same in chunks that it does not
// take: each is within the bound.
TEST_F(CudaCacheTest, LongPromptsAgreeWithTheirChunks) {
  constexpr int64_t kLong = 2100, kChunk = 700;
  Make({{.bits = 4, .symmetric = false}, {.bits = 4, .symmetric = false}, 2, 16, 128}, kLong);
  const TestCache cache(rng_, kv_, kLong);
  const SequenceSlice all = {.tokens = kLong, .pages = cache.pages()};
  const RopeTable rope = RandomRope(rng_, kLong, kv_.head_dim / 2);
  ref_->RopeAndAppend(Raw(q_), Raw(k_), Raw(v_), spec_, rope, kv_, {&all, 1});
  const DeviceCache device(*cuda_, cache, kv_, kLong);
  const auto q = CopyHalves(q_);
  const auto attend = [&](int64_t chunk) {
    Buffer<float> out = Copy(std::vector<float>(q_.size(), kPoison));
    for (int64_t first = 0; first < kLong; first += chunk) {
      const SequenceSlice slice = {.first_row = first,
                                   .tokens = chunk,
                                   .position = first,
                                   .pages = device.pages(),
                                   .offset = kv_.page_bytes()};
      cuda_->Attention(q.data(), spec_, kv_, {&slice, 1}, out.data());
    }
    return Host(out.data(), static_cast<int64_t>(q_.size()));
  };
  const std::vector<float> whole = attend(kLong), chunks = attend(kChunk);
  for (int64_t token = 0; token < kLong; token += 1 + token / 20) {
    const int64_t head = token % spec_.heads, row = token * spec_.heads + head;
    const double bound = 2 * Bound(cache, token, head);
    for (int64_t i = row * kv_.head_dim; i < (row + 1) * kv_.head_dim; ++i) {
      ASSERT_NEAR(whole[i], chunks[i], bound) << "token " << token << " head " << head;
    }
  }
}

}  // namespace
}  // namespace nibble
