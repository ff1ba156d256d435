// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <limits>

#include "backends/cuda/attention/attention_fused.h"
#include "backends/cuda/attention/page_decode.cuh"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 128;
constexpr size_t kTogether = 4;  // sequences; more fill the GPU no better and take more memory
constexpr int kTokenStep = 256, kMinKeys = 1024;
// Pages that cuDNN loads at once at most; kMinKeys is whole ones.
constexpr unsigned kTilePages = 4;
// Multiplications and additions of a sequence: a prompt of 2048 tokens with 32 heads of 128. Copies
// take what cuDNN saves in half as much, and building its kernels half a second of a program.
constexpr double kMinProducts = 16e9;

struct FusedCall {
  AttentionArguments arguments;  // of the sequences that run together
  int keys;                      // of CudnnShape
  __nv_bfloat16 *k, *v;
  int32_t *tokens, *stored, *offsets;  // of CudnnTensors
};

// Pages in front of it are behind the window of all new tokens.
__host__ __device__ int64_t FirstPage(const SequenceOnDevice& s, int window) {
  const int64_t unseen = s.position + 1 - window;
  return window == 0 || unseen <= 0 ? 0 : unseen / kPageKeys;
}

__host__ __device__ int64_t KeysOf(const SequenceOnDevice& s, int window) {
  return s.position + s.tokens - FirstPage(s, window) * kPageKeys;
}

// Rows of codes with one scale each, `eights` times eight of them. All loads of a thread first: the
// compiler must not move them in front of stores.
template <int kBits>
__device__ __forceinline__ void DecodeCodes(const KvPart& part, const std::byte* block, int stored,
                                            int eights, uint4* rows) {
  constexpr int kAtOnce = 8, kEach = 32 / kBits;  // codes of a word
  struct alignas(kBits) Words {
    uint32_t w[kBits / 4];
  };
  const auto* codes = reinterpret_cast<const Words*>(block + part.codes);
  const auto* params = reinterpret_cast<const __half2*>(block + part.params);
  for (int first = threadIdx.x; first < stored * eights; first += kAtOnce * kThreads) {
    Words words[kAtOnce];
    float2 p[kAtOnce];  // scale, zero
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = min(first + j * kThreads, stored * eights - 1);
      words[j] = codes[i], p[j] = __half22float2(params[i / eights]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      float x[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const uint32_t code = words[j].w[e / kEach] >> e % kEach * kBits & ((1 << kBits) - 1);
        x[e] = p[j].x * (static_cast<float>(code) - p[j].y);
      }
      const int i = first + j * kThreads;
      if (i < stored * eights) rows[i] = PackBf16(x);
    }
  }
}

// K or V of a page by a whole block of threads; keys from `stored` on become zeros.
__device__ __forceinline__ void DecodePart(const KvPart& part, int head_dim, const std::byte* block,
                                           int stored, __nv_bfloat16* values) {
  const int eights = head_dim / 8;
  auto* const rows = reinterpret_cast<uint4*>(values);
  for (int i = stored * eights + threadIdx.x; i < kPageKeys * eights; i += kThreads) rows[i] = {};
  if (part.packs()) {
    return part.bits == 4 ? DecodeCodes<4>(part, block, stored, eights, rows)
                          : DecodeCodes<8>(part, block, stored, eights, rows);
  }
  for (int i = threadIdx.x; i < stored * eights; i += kThreads) {
    float x[8];
    DecodeEight(part, block, i / eights, i % eights * 8, x);
    rows[i] = PackBf16(x);
  }
}

// Page x of kv head y and sequence z; pages behind the last one become zeros.
__global__ void __launch_bounds__(kThreads) DecodePages(const __grid_constant__ FusedCall call) {
  const AttentionArguments& a = call.arguments;
  const SequenceOnDevice s = a.batch[blockIdx.z];
  WaitForPreviousGrid();
  AllowNextGrid();
  const int64_t keys = KeysOf(s, a.sliding_window);
  const int64_t left = keys - int64_t{blockIdx.x} * kPageKeys;
  const int stored = static_cast<int>(max(int64_t{0}, min(int64_t{kPageKeys}, left)));
  const std::byte* block = nullptr;
  if (stored > 0) {
    block = s.pages[FirstPage(s, a.sliding_window) + blockIdx.x] + a.kv.offset +
            int64_t{blockIdx.y} * a.kv.block_bytes;
  }
  const int64_t head = int64_t{blockIdx.z} * a.kv.kv_heads + blockIdx.y;
  const int64_t at = (head * call.keys + int64_t{blockIdx.x} * kPageKeys) * a.kv.head_dim;
  DecodePart(a.kv.k, a.kv.head_dim, block, stored, call.k + at);
  DecodePart(a.kv.v, a.kv.head_dim, block, stored, call.v + at);
  if (blockIdx.x != 0 || blockIdx.y != 0 || threadIdx.x != 0) return;
  call.tokens[blockIdx.z] = static_cast<int>(s.tokens);
  call.stored[blockIdx.z] = static_cast<int>(keys);
  const int width = a.heads * a.kv.head_dim;
  call.offsets[blockIdx.z] = static_cast<int>(s.first_row * width);
  if (blockIdx.z + 1 == gridDim.z) {
    call.offsets[gridDim.z] = static_cast<int>((s.first_row + s.tokens) * width);
  }
}

CudnnShape ShapeOf(const AttentionArguments& a, std::span<const SequenceOnDevice> batch) {
  int64_t tokens = 0, keys = kMinKeys;
  for (const SequenceOnDevice& s : batch) {
    tokens = std::max(tokens, s.tokens);
    keys = std::max(keys, KeysOf(s, a.sliding_window));
  }
  return {.sequences = static_cast<int>(batch.size()),
          .heads = a.heads,
          .kv_heads = a.kv.kv_heads,
          .head_dim = a.kv.head_dim,
          .queries = static_cast<int>((tokens + kTokenStep - 1) / kTokenStep * kTokenStep),
          .keys = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(keys))),
          .scale = a.scale,
          .causal = true,
          .sliding_window = a.sliding_window,
          .ragged = true};
}

// Calls function(sequences that run together, the first one's number).
template <typename Function>
void ForGroups(std::span<const SequenceOnDevice> batch, const Function& function) {
  for (size_t first = 0; first < batch.size(); first += kTogether) {
    function(batch.subspan(first, std::min(kTogether, batch.size() - first)), first);
  }
}

bool IsLong(const AttentionArguments& a, const SequenceOnDevice& s) {
  const int64_t mean = s.position + s.tokens / 2;
  const int64_t keys = a.sliding_window == 0 ? mean : std::min<int64_t>(mean, a.sliding_window);
  return s.tokens >= kTokenStep && 2.0 * static_cast<double>(s.tokens) * static_cast<double>(keys) *
                                           a.heads * a.kv.head_dim >=
                                       kMinProducts;
}

}  // namespace

bool FusedAttention::Takes(const AttentionArguments& a, std::span<const SequenceOnDevice> batch) {
  return a.form == CacheForm::kOnly && a.softcap == 0 && a.sinks == nullptr &&
         std::ranges::all_of(batch, [&](const auto& s) { return IsLong(a, s); }) &&
         Builds(a, batch);
}

bool FusedAttention::Builds(const AttentionArguments& a, std::span<const SequenceOnDevice> batch) {
  bool all = a.kv.head_dim <= kMaxTileHeadDim;  // beyond that cuDNN was not tried
  for (const SequenceOnDevice& s : batch) {
    const int64_t end = (s.first_row + s.tokens) * a.heads * a.kv.head_dim;
    all = all && end <= std::numeric_limits<int32_t>::max();
  }
  ForGroups(batch, [&](auto group, size_t) { all = all && cudnn_.Build(ShapeOf(a, group)); });
  return all;
}

void FusedAttention::Run(const AttentionArguments& a, std::span<const SequenceOnDevice> batch,
                         cudaStream_t stream) {
  ForGroups(batch, [&](std::span<const SequenceOnDevice> group, size_t first) {
    const CudnnShape shape = ShapeOf(a, group);
    const int64_t values = int64_t{shape.sequences} * shape.kv_heads * shape.keys * shape.head_dim;
    const auto halves = [&](DeviceBuffer<uint16_t>& buffer) {
      return reinterpret_cast<__nv_bfloat16*>(buffer.Grow(values));
    };
    int64_t keys = 0;
    for (const SequenceOnDevice& s : group) keys = std::max(keys, KeysOf(s, a.sliding_window));
    int32_t* const numbers = numbers_.Grow(3 * static_cast<int64_t>(kTogether) + 1);
    FusedCall call = {.arguments = a,
                      .keys = shape.keys,
                      .k = halves(k_),
                      .v = halves(v_),
                      .tokens = numbers,
                      .stored = numbers + kTogether,
                      .offsets = numbers + 2 * kTogether};
    call.arguments.batch += first;
    const auto tiles = static_cast<unsigned>((keys - 1) / (kTilePages * kPageKeys) + 1);
    LaunchDependent(
        DecodePages,
        {.grid = dim3(kTilePages * tiles, a.kv.kv_heads, shape.sequences), .block = kThreads},
        stream, call);
    cudnn_.Run(shape, {a.q, call.k, call.v, a.out, call.tokens, call.stored, call.offsets}, stream);
  });
}

}  // namespace nibble::cuda
