// SPDX-License-Identifier: Apache-2.0
// Cache and attention of the cuda backend against the reference backend: pages must agree bit for
// bit, attention within bounds derived below.
#include <algorithm>

#include "backends/cuda/attention/attention_fused.h"
#include "backends/parity_testing.h"

namespace nibble {
namespace {

struct CacheCase {
  FormatSpec k, v;
  int64_t kv_heads, group, head_dim;
  int recent_bits = 0;
};

const CacheCase kCacheCases[] = {
    {{.bits = 4, .symmetric = false, .clip = 0.95}, {.bits = 4, .symmetric = false}, 2, 1, 128},
    {{.bits = 4, .symmetric = false}, {.bits = 4, .symmetric = false}, 1, 4, 64},
    {{.bits = 4, .symmetric = false}, {.bits = 4}, 3, 5, 64},
    {{.bits = 4}, {.bits = 8}, 3, 2, 96},
    {{.bits = 3, .symmetric = false, .group = 32}, {.bits = 16}, 2, 7, 64},
    {{.bits = 16}, {.bits = 2, .symmetric = false}, 1, 1, 80},
    {{.bits = 32}, {.bits = 16}, 2, 3, 96},
    {{.bits = 16}, {.bits = 32}, 1, 6, 128},
    {{.bits = 4, .symmetric = false}, {.bits = 4, .symmetric = false}, 1, 8, 256},
    {{.bits = 16}, {.bits = 16}, 2, 1, 128},
    {{.bits = 16}, {.bits = 16}, 1, 12, 64},
    {{.bits = 16}, {.bits = 16}, 3, 5, 96},
    {{.bits = 16}, {.bits = 16}, 1, 16, 256},
    {{.bits = 4, .symmetric = false}, {.bits = 4, .symmetric = false}, 2, 4, 512},
    {{.bits = 8, .group = 128}, {.bits = 16}, 1, 3, 320},
    {{.bits = 32}, {.bits = 32}, 1, 2, 512},
    {{.bits = 8, .symmetric = false}, {.bits = 8, .symmetric = false, .clip = 0.95}, 2, 1, 128},
    {{.bits = 8, .symmetric = false}, {.bits = 8}, 1, 6, 128},
    {{.bits = 8}, {.bits = 8, .symmetric = false}, 2, 3, 64},
    {{.bits = 8, .symmetric = false}, {.bits = 8, .symmetric = false}, 3, 4, 80},
    {{.bits = 8, .symmetric = false}, {.bits = 8, .symmetric = false}, 1, 7, 96},
    {{.bits = 8, .symmetric = false}, {.bits = 8, .symmetric = false}, 2, 8, 112},
    {{.bits = 8, .symmetric = false}, {.bits = 8, .symmetric = false}, 1, 4, 256},
    {{.bits = 8, .symmetric = false}, {.bits = 8, .symmetric = false}, 2, 8, 512},
    {{.bits = 8, .symmetric = false}, {.bits = 4, .symmetric = false}, 2, 5, 128},
    {{.bits = 4, .symmetric = false}, {.bits = 8, .symmetric = false}, 2, 4, 64},
    {{.bits = 4, .symmetric = false}, {.bits = 4, .symmetric = false}, 2, 4, 80},
    {{.bits = 4}, {.bits = 4, .symmetric = false}, 1, 7, 112},
    {{.bits = 8, .symmetric = false}, {.bits = 4, .symmetric = false}, 1, 5, 80},
    {{.bits = 4, .symmetric = false}, {.bits = 8, .symmetric = false}, 3, 1, 112},
    {{.bits = 16}, {.bits = 16}, 2, 4, 512},
    {{.bits = 16}, {.bits = 8, .symmetric = false}, 1, 16, 384},
    {{.bits = 16}, {.bits = 16}, 2, 2, 80},
    {{.bits = 16}, {.bits = 16}, 1, 4, 112},
    // With a recent form.
    {{.bits = 4, .symmetric = false, .clip = 0.9}, {.bits = 4, .symmetric = false}, 2, 4, 128, 8},
    {{.bits = 4, .symmetric = false}, {.bits = 4}, 3, 3, 64, 8},
    {{.bits = 4, .symmetric = false}, {.bits = 8}, 1, 7, 96, 8},
    {{.bits = 4, .symmetric = false}, {.bits = 4, .symmetric = false}, 1, 4, 256, 8},
    {{.bits = 4, .symmetric = false}, {.bits = 4, .symmetric = false}, 1, 8, 512, 8},
    {{.bits = 4, .symmetric = false}, {.bits = 16}, 2, 1, 80, 8},
    {{.bits = 4, .symmetric = false}, {.bits = 4}, 2, 3, 80, 8},
    {{.bits = 3, .symmetric = false, .group = 32}, {.bits = 2}, 2, 2, 64, 8},
};

// A cache in the GPU's memory behind the page table of a second layer.
class DeviceCache {
 public:
  DeviceCache(Backend& backend, const TestCache& cache)
      : backend_(backend), cache_(cache), bytes_(cache.bytes().size()) {
    memory_ = backend.Allocate(bytes_);
    backend.Write(cache.bytes().data(), bytes_, memory_.get());
    std::vector<std::byte*> pages;
    for (std::byte* page : cache.pages()) {
      pages.push_back(memory_.get() + (page - cache.bytes().data()) - kOffset);
    }
    table_ = backend.Allocate(pages.size() * sizeof(pages[0]));
    backend.Write(pages.data(), pages.size() * sizeof(pages[0]), table_.get());
  }
  static constexpr int64_t kOffset = 4096;  // of the second layer in a page
  std::byte* const* pages() const { return reinterpret_cast<std::byte* const*>(table_.get()); }
  // TestCache::Slice with the pages in the GPU's memory.
  SequenceSlice Slice(int64_t first_row, int64_t tokens, int64_t position) const {
    SequenceSlice slice = cache_.Slice(first_row, tokens, position);
    slice.pages = pages();
    slice.offset = slice.recent_offset = kOffset;
    return slice;
  }
  std::span<const std::byte> bytes() const {
    const float* host = backend_.Read(reinterpret_cast<const float*>(memory_.get()),
                                      static_cast<int64_t>(bytes_ / sizeof(float)));
    return {reinterpret_cast<const std::byte*>(host), bytes_};
  }

 private:
  Backend& backend_;
  const TestCache& cache_;
  size_t bytes_;
  AlignedBytes memory_, table_;
};

class CudaCacheTest : public GpuParityTest {
 protected:
  static constexpr int64_t kPositions = 301;
  static constexpr size_t kBehind = 40000;  // values
  void Make(const CacheCase& c, int64_t positions = kPositions) {
    kv_ = {.kv_heads = c.kv_heads,
           .head_dim = c.head_dim,
           .k = c.k,
           .v = c.v,
           .recent_bits = c.recent_bits};
    spec_ = {.heads = c.kv_heads * c.group, .scale = 1 / std::sqrt(static_cast<float>(c.head_dim))};
    q_ = RandomVector(rng_, positions * spec_.heads * c.head_dim);
    k_ = RandomVector(rng_, positions * c.kv_heads * c.head_dim);
    v_ = RandomRows(rng_, positions * c.kv_heads, c.head_dim);
  }
  // The error bounds of a row of attention if q, keys, weights and values have a relative error of
  // up to `unit`, and the result of 2^-8. The smallest values, in fp16, lose up to 2^-25.
  std::vector<double> Bounds(const TestCache& cache, int64_t token, int64_t head,
                             double unit) const {
    const int64_t d = kv_.head_dim, kv_head = head / (spec_.heads / kv_.kv_heads);
    const int64_t window = spec_.sliding_window;
    const float* q = q_.data() + (token * spec_.heads + head) * d;
    std::vector<double> scores, losses, result(static_cast<size_t>(d));
    const int64_t begin = window == 0 ? 0 : std::max<int64_t>(0, token + 1 - window);
    for (int64_t j = begin; j <= token; ++j) {
      const auto k = cache.Row(true, kv_head, j, token);
      double score = 0, squares = 0;
      for (int64_t i = 0; i < d; ++i) {
        const double product = double{q[i]} * k[i] * spec_.scale;
        score += product, squares += product * product;
      }
      const double cap = spec_.softcap;  // which makes errors smaller
      if (cap > 0) score = cap * std::tanh(score / cap);
      // Products are off by 2 `unit` each, with any sign, since q is random; the weight itself, the
      // value and the sum by 3.
      scores.push_back(score), losses.push_back(unit * (2 * std::sqrt(squares) + 3));
    }
    const double largest = *std::ranges::max_element(scores);
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - largest);
    std::vector<double> means = result;
    const auto for_values = [&](const auto& function) {
      for (size_t j = 0; j < scores.size(); ++j) {
        const auto v = cache.Row(false, kv_head, begin + static_cast<int64_t>(j), token);
        for (size_t i = 0; i < result.size(); ++i) function(i, j, double{v[i]});
      }
    };
    for_values([&](size_t i, size_t j, double v) { means[i] += scores[j] / sum * v; });
    for_values([&](size_t i, size_t j, double v) {
      // Integer weights lose 2^-16 of the largest, too. A weight moves the result by its value's
      // distance from the mean.
      const double loss = (scores[j] * losses[j] + 0x1p-16) / sum;
      result[i] += std::pow(loss * (std::fabs(v) + std::fabs(means[i])), 2);
    });
    for (size_t i = 0; i < result.size(); ++i) {
      // Errors of keys are independent and at most their bound: 4 times the root of the sum of
      // their squares is 7 standard deviations.
      result[i] = 4 * std::sqrt(result[i]) + 0x1p-8 * std::fabs(means[i]) + 0x1p-25;
    }
    return result;
  }
  // Expects the rows from `first` on to be within the bound, and those before it untouched.
  void CheckRows(const TestCache& cache, int64_t first, const std::vector<float>& result,
                 const std::vector<float>& expected, double unit) {
    const int64_t d = kv_.head_dim;
    for (int64_t row = 0; row < kPositions * spec_.heads; ++row) {
      const int64_t token = row / spec_.heads;
      if (token >= first && row % 7 != 0) continue;
      std::vector<double> bounds(static_cast<size_t>(d));
      if (token >= first) bounds = Bounds(cache, token, row % spec_.heads, unit);
      for (int64_t i = 0; i < d; ++i) {
        ASSERT_NEAR(result[row * d + i], expected[row * d + i], bounds[static_cast<size_t>(i)])
            << "token " << token << " row " << row;
      }
    }
  }
  // Attention of `tokens` tokens from `first` on, by both backends over the same pages; other rows
  // keep kPoison. `sinks`: spec_.sinks in the GPU's memory.
  struct Results {
    std::vector<float> ours, ref;
  };
  Results Attend(const TestCache& cache, const DeviceCache& device, const Buffer<Intermediate>& q,
                 int64_t first, int64_t tokens, const float* sinks = nullptr) {
    const SequenceSlice on_gpu = device.Slice(first, tokens, first);
    const SequenceSlice slice = cache.Slice(first, tokens, first);
    AttentionSpec on_device = spec_;
    on_device.sinks = sinks;
    Results results = {{}, std::vector<float>(q_.size(), kPoison)};
    Buffer<Intermediate> out = CopyValues(results.ref);
    ours_->Attention(q.data(), on_device, kv_, {&on_gpu, 1}, out.data());
    results.ours = HostValues(out.data(), static_cast<int64_t>(q_.size()));
    ref_->Attention(Raw(q_), spec_, kv_, {&slice, 1}, Raw(results.ref));
    return results;
  }
  std::vector<float> Fused(cuda::FusedAttention& fused, const TestCache& cache);

  KvSpec kv_;
  AttentionSpec spec_;
  std::vector<float> q_, k_, v_;
};

TEST_F(CudaCacheTest, AppendedPagesAreBitEqual) {
  int index = 0;
  for (const CacheCase& c : kCacheCases) {
    Make(c);
    const bool part = c.group == 4;       // some models turn only a part of the head
    const bool norms = index++ % 2 == 1;  // and some have norms
    const auto q_norm = RandomVector(rng_, c.head_dim), k_norm = RandomVector(rng_, c.head_dim);
    const auto device_q_norm = ToBackend(*ours_, q_norm), device_k_norm = ToBackend(*ours_, k_norm);
    const auto center = RandomVector(rng_, c.kv_heads * c.head_dim);
    const auto device_center = ToBackend(*ours_, center);
    AttentionSpec spec = spec_, device_spec = spec_;
    if (index % 3 != 0) {
      spec.key_center = center.data(), device_spec.key_center = device_center.data();
    }
    if (norms) {
      spec.norm_eps = device_spec.norm_eps = 1e-3f;
      spec.q_norm = q_norm.data(), device_spec.q_norm = device_q_norm.data();
      spec.k_norm = k_norm.data(), device_spec.k_norm = device_k_norm.data();
    }
    kv_.rotation = FullHadamard(c.head_dim);
    const TestCache cache(rng_, kv_, kPositions);
    const DeviceCache device(*ours_, cache);
    const RopeTable rope = RandomRope(rng_, kPositions, c.head_dim / (part ? 4 : 2));
    const auto cos = ToBackend(*ours_, rope.cos.data), sin = ToBackend(*ours_, rope.sin.data);
    const RopeView device_rope(cos.data(), sin.data(), kPositions, rope.cos.cols);
    const auto q = CopyValues(q_), k = CopyValues(k_), v = CopyValues(v_);
    for (int64_t at = 0, step = 1; at < kPositions; at += step, step = step * 2 % 61) {
      step = std::min(step, kPositions - at);
      const SequenceSlice slice = device.Slice(at, step, at);
      ours_->RopeAndAppend(q.data(), k.data(), v.data(), device_spec, device_rope, kv_,
                           {&slice, 1});
    }
    const SequenceSlice all = cache.Slice(0, kPositions, 0);
    ref_->RopeAndAppend(Raw(q_), Raw(k_), Raw(v_), spec, rope, kv_, {&all, 1});
    for (float& x : q_) x = Kept(x);
    ASSERT_EQ(HostValues(q.data(), static_cast<int64_t>(q_.size())), q_);
    ASSERT_TRUE(std::ranges::equal(device.bytes(), cache.bytes()))
        << FormatText(c.k) << ", " << FormatText(c.v);
  }
}

// q, keys, weights and values are at least as precise as fp16.
TEST_F(CudaCacheTest, AttentionAgreesOverTheSamePages) {
  for (const CacheCase& c : kCacheCases) {
    Make(c);
    const TestCache cache(rng_, kv_, kPositions);
    const SequenceSlice all = cache.Slice(0, kPositions, 0);
    const RopeTable rope = RandomRope(rng_, kPositions, c.head_dim / 2);
    ref_->RopeAndAppend(Raw(q_), Raw(k_), Raw(v_), spec_, rope, kv_, {&all, 1});
    const DeviceCache device(*ours_, cache);
    const auto q = CopyValues(q_);
    const std::vector<float> sinks = RandomVector(rng_, spec_.heads);
    const Buffer<float> device_sinks = Copy(sinks);
    for (const int64_t window : {0, 1, 17, 100}) {
      spec_.sliding_window = window;
      spec_.softcap = window == 17 ? 0.5f : 0;
      spec_.sinks = window == 100 ? sinks.data() : nullptr;
      // A whole prompt, a chunk behind it, a few tokens, one decoded token.
      for (const int64_t first : {int64_t{0}, int64_t{70}, kPositions - 5, kPositions - 1}) {
        const auto [result, expected] =
            Attend(cache, device, q, first, kPositions - first,
                   spec_.sinks == nullptr ? nullptr : device_sinks.data());
        CheckRows(cache, first, result, expected, 0x1p-11);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// One token whose keys are more than one span and, with 16 spans to a joint, more than one joint.
TEST_F(CudaCacheTest, SpansOfALongContextAreJoined) {
  constexpr int64_t kLong = 5000;
  struct {
    int bits, recent_bits, head_dim;
  } const cases[] = {{4, 0, 128}, {8, 0, 128}, {16, 0, 128}, {4, 8, 128}, {4, 0, 80}, {16, 0, 512}};
  for (const auto& [bits, recent_bits, head_dim] : cases) {
    const FormatSpec format = {.bits = bits, .symmetric = false};
    Make({format, format, 1, 4, head_dim, recent_bits}, kLong);
    const TestCache cache(rng_, kv_, kLong);
    const SequenceSlice all = cache.Slice(0, kLong, 0);
    const RopeTable rope = RandomRope(rng_, kLong, kv_.head_dim / 2);
    ref_->RopeAndAppend(Raw(q_), Raw(k_), Raw(v_), spec_, rope, kv_, {&all, 1});
    const DeviceCache device(*ours_, cache);
    const auto q = CopyValues(q_);
    for (const int64_t token : {int64_t{600}, int64_t{1023}, int64_t{1024}, kLong - 1}) {
      const auto [result, expected] = Attend(cache, device, q, token, 1);
      for (int64_t head = 0; head < spec_.heads; ++head) {
        const std::vector<double> bounds = Bounds(cache, token, head, 0x1p-11);
        for (int64_t i = 0; i < kv_.head_dim; ++i) {
          const int64_t at = (token * spec_.heads + head) * kv_.head_dim + i;
          ASSERT_NEAR(result[at], expected[at], bounds[static_cast<size_t>(i)])
              << bits << " bits, token " << token << " head " << head;
        }
      }
    }
  }
}

// A batch of a prompt and answers gives the same bits as the prompt and the answers by themselves.
TEST_F(CudaCacheTest, AnswersBesideAPromptKeepTheirBits) {
  for (const CacheCase& c : kCacheCases) {
    Make(c);
    const TestCache cache(rng_, kv_, kPositions);
    const SequenceSlice all = cache.Slice(0, kPositions, 0);
    const RopeTable rope = RandomRope(rng_, kPositions, c.head_dim / 2);
    ref_->RopeAndAppend(Raw(q_), Raw(k_), Raw(v_), spec_, rope, kv_, {&all, 1});
    const DeviceCache device(*ours_, cache);
    const auto q = CopyValues(q_);
    std::vector<SequenceSlice> batch;
    for (const int64_t first : {3, 269, 70}) {
      batch.push_back(device.Slice(first, first == 70 ? 199 : 1, first));
    }
    std::vector<float> poison(q_.size(), kPoison);
    Buffer<Intermediate> together = CopyValues(poison), apart = CopyValues(poison);
    ours_->Attention(q.data(), spec_, kv_, batch, together.data());
    ours_->Attention(q.data(), spec_, kv_, std::span(batch).first(2), apart.data());
    ours_->Attention(q.data(), spec_, kv_, std::span(batch).last(1), apart.data());
    const auto count = static_cast<int64_t>(q_.size());
    ASSERT_EQ(HostValues(together.data(), count), HostValues(apart.data(), count));
  }
}

// cuDNN's attention of all tokens as one batch: chunks of one sequence, more than run together.
// Expects the kBehind values behind the result to stay as they are. Empty if cuDNN cannot do it.
std::vector<float> CudaCacheTest::Fused(cuda::FusedAttention& fused, const TestCache& cache) {
  const SequenceSlice all = cache.Slice(0, kPositions, 0);
  const RopeTable rope = RandomRope(rng_, kPositions, kv_.head_dim / 2);
  ref_->RopeAndAppend(Raw(q_), Raw(k_), Raw(v_), spec_, rope, kv_, {&all, 1});
  const DeviceCache device(*ours_, cache);
  const auto q = CopyValues(q_);
  std::vector<float> rows(q_.size() + kBehind, kPoison);
  Buffer<Intermediate> out = CopyValues(rows);
  std::vector<cuda::SequenceOnDevice> batch;
  const int64_t begins[] = {0, 1, 30, 70, 150, kPositions};
  for (size_t i = 0; i + 1 < std::size(begins); ++i) {
    batch.push_back({begins[i], begins[i + 1] - begins[i], begins[i], device.pages()});
  }
  const auto on_device = cuda::ToDevice(std::span<const cuda::SequenceOnDevice>(batch));
  const cuda::AttentionArguments arguments = {
      .q = reinterpret_cast<const __nv_bfloat16*>(q.data()),
      .out = reinterpret_cast<__nv_bfloat16*>(out.data()),
      .heads = static_cast<int>(spec_.heads),
      .scale = spec_.scale,
      .sliding_window = static_cast<int>(spec_.sliding_window),
      .kv = cuda::LayoutOf(kv_, DeviceCache::kOffset),
      .batch = on_device.data(),
      .sequences = static_cast<int>(batch.size())};
  if (!fused.Builds(arguments, batch)) return {};
  fused.Run(arguments, batch, nullptr);
  std::vector<float> result = HostValues(out.data(), static_cast<int64_t>(rows.size()));
  EXPECT_TRUE(std::equal(rows.begin() + q_.size(), rows.end(), result.begin() + q_.size()));
  result.resize(q_.size());
  return result;
}

// Keys, weights and values are bf16. Infinities that an unquantized cache has left in working
// memory must not matter.
TEST_F(CudaCacheTest, FusedAttentionAgreesOverTheSamePages) {
  cuda::FusedAttention fused;
  Make({{.bits = 16}, {.bits = 16}, 2, 1, 256});
  for (float& x : k_) x *= std::numeric_limits<float>::infinity();
  for (float& x : v_) x *= std::numeric_limits<float>::infinity();
  if (Fused(fused, TestCache(rng_, kv_, kPositions)).empty()) GTEST_SKIP() << "needs cuDNN";
  for (const CacheCase& c : kCacheCases) {
    if (c.head_dim > cuda::kMaxTileHeadDim || c.recent_bits > 0) continue;
    for (const int64_t window : {0, 17}) {
      Make(c);
      spec_.sliding_window = window;
      const TestCache cache(rng_, kv_, kPositions);
      const std::vector<float> result = Fused(fused, cache);
      ASSERT_EQ(result.size(), q_.size()) << "head_dim " << c.head_dim;
      const SequenceSlice all = cache.Slice(0, kPositions, 0);
      std::vector<float> expected(q_.size(), kPoison);
      ref_->Attention(Raw(q_), spec_, kv_, {&all, 1}, Raw(expected));
      CheckRows(cache, 0, result, expected, 0x1p-8);
      if (HasFatalFailure()) return;
    }
  }
}

// A prompt so long that cuDNN runs it, if it is there, and the same prompt in chunks too short for
// cuDNN: each is within the bound.
TEST_F(CudaCacheTest, LongPromptsAgreeWithTheirChunks) {
  constexpr int64_t kLong = 2100, kChunk = 700;
  Make({{.bits = 4, .symmetric = false}, {.bits = 4, .symmetric = false}, 2, 16, 128}, kLong);
  const TestCache cache(rng_, kv_, kLong);
  const SequenceSlice all = cache.Slice(0, kLong, 0);
  const RopeTable rope = RandomRope(rng_, kLong, kv_.head_dim / 2);
  ref_->RopeAndAppend(Raw(q_), Raw(k_), Raw(v_), spec_, rope, kv_, {&all, 1});
  const DeviceCache device(*ours_, cache);
  const auto q = CopyValues(q_);
  const auto attend = [&](int64_t chunk) {
    std::vector<float> poison(q_.size(), kPoison);
    Buffer<Intermediate> out = CopyValues(poison);
    for (int64_t first = 0; first < kLong; first += chunk) {
      const SequenceSlice slice = device.Slice(first, chunk, first);
      ours_->Attention(q.data(), spec_, kv_, {&slice, 1}, out.data());
    }
    return HostValues(out.data(), static_cast<int64_t>(q_.size()));
  };
  const std::vector<float> whole = attend(kLong), chunks = attend(kChunk);
  for (int64_t token = 0; token < kLong; token += 1 + token / 20) {
    const int64_t head = token % spec_.heads, row = token * spec_.heads + head;
    const std::vector<double> bounds = Bounds(cache, token, head, 0x1p-8);
    for (int64_t i = 0; i < kv_.head_dim; ++i) {
      const int64_t at = row * kv_.head_dim + i;
      ASSERT_NEAR(whole[at], chunks[at], 2 * bounds[static_cast<size_t>(i)])
          << "token " << token << " head " << head;
    }
  }
}

}  // namespace
}  // namespace nibble
