// SPDX-License-Identifier: Apache-2.0
// Inside eight elements of a row of q, K and V the order is that of page_decode.cuh; the same order
// in q and K leaves scores as they are, and outputs are put right when they are copied.
#include <algorithm>
#include <bit>

#include "backends/cuda/attention_fused.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/page_decode.cuh"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 128, kEach = 4;  // eights of a row that a thread copies
constexpr size_t kTogether = 4;  // sequences; more fill the GPU no better and take more memory
constexpr int kTokenStep = 256, kLeastKeys = 1024;
// Pages that cuDNN loads at once at most; kLeastKeys is whole ones.
constexpr unsigned kTilePages = 4;
// Multiplications and additions of a sequence: a prompt of 2048 tokens with 32 heads of 128. Copies
// take what cuDNN saves in half as much, and building its kernels half a second of a program.
constexpr double kLeastProducts = 16e9;

struct FusedCall {
  AttentionArguments arguments;  // of the sequences that run together
  int queries, keys;             // of CudnnShape
  unsigned pages;                // to decode for each sequence
  __half *q, *k, *v, *out;
  int32_t* lengths;  // [2][sequences]: queries, keys
};

// Pages in front of it are behind the window of all new tokens.
__host__ __device__ int64_t FirstPage(const SequenceOnDevice& s, int window) {
  const int64_t unseen = s.position + 1 - window;
  return window == 0 || unseen <= 0 ? 0 : unseen / kPageKeys;
}

__host__ __device__ int64_t KeysOf(const SequenceOnDevice& s, int window) {
  return s.position + s.tokens - FirstPage(s, window) * kPageKeys;
}

// K or V of a page by a whole block of threads; keys from `stored` on become zeros. Neighbouring
// threads write neighbouring places, unlike DecodeRows, which is made for shared memory.
template <int D>
__device__ __forceinline__ void DecodePart(const KvPart& part, int head_dim, const std::byte* block,
                                           int stored, __half* rows) {
  if (!part.nibbles() || head_dim != D) {
    return DecodeRows<D>(part, head_dim, block, stored, rows, head_dim);
  }
  constexpr int kEights = D / 8, kAll = kPageKeys * kEights / kThreads,
                kRead = kAll % 8 == 0 ? 8 : kAll;
  const auto* codes = reinterpret_cast<const uint32_t*>(block + part.codes);
  const auto* params = reinterpret_cast<const __half2*>(block + part.params);
  for (int first = threadIdx.x; first < kPageKeys * kEights; first += kRead * kThreads) {
    uint32_t words[kRead];
    __half2 p[kRead];
#pragma unroll
    for (int j = 0; j < kRead; ++j) {
      const int i = first + j * kThreads, row = i / kEights;
      words[j] = row < stored ? codes[i] : 0;
      p[j] = row < stored ? params[row] : __half2{};
    }
#pragma unroll
    for (int j = 0; j < kRead; ++j) {
      reinterpret_cast<uint4*>(rows)[first + j * kThreads] = NibbleDecoder(p[j]).Decode(words[j]);
    }
  }
}

// A page of a kv head and sequence; pages behind the last one become zeros.
template <int D>
__device__ __forceinline__ void DecodePage(const FusedCall& call, const SequenceOnDevice& s) {
  const AttentionArguments& a = call.arguments;
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
  DecodePart<D>(a.kv.k, a.kv.head_dim, block, stored, call.k + at);
  DecodePart<D>(a.kv.v, a.kv.head_dim, block, stored, call.v + at);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    call.lengths[blockIdx.z] = static_cast<int>(s.tokens);
    call.lengths[a.sequences + blockIdx.z] = static_cast<int>(keys);
  }
}

// The j-th eight elements of a thread, of sequence blockIdx.z.
struct Eight {
  bool exists;
  int64_t at, row;  // in q and out of the call; row of the batch
  int column;

  __device__ Eight(const FusedCall& call, const SequenceOnDevice& s, int block, int j) {
    const AttentionArguments& a = call.arguments;
    const int width = a.heads * a.kv.head_dim, eights = width / 8;
    const int i = (block * kEach + j) * kThreads + threadIdx.x, token = i / eights;
    exists = token < s.tokens;
    at = int64_t{blockIdx.z} * call.queries * width + int64_t{i} * 8;
    row = s.first_row + token, column = i % eights * 8;
  }
};

// All loads first: the compiler must not move them in front of stores.
__device__ __forceinline__ void ConvertQueries(const FusedCall& call, const SequenceOnDevice& s,
                                               int block) {
  const AttentionArguments& a = call.arguments;
  float x[kEach][8];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const Eight e(call, s, block, j);
    if (e.exists) LoadEight(a.q, a.type, e.row * a.q_stride + e.column, x[j]);
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const Eight e(call, s, block, j);
    for (float& v : x[j]) v *= a.scale;
    if (e.exists) *reinterpret_cast<uint4*>(call.q + e.at) = PackEight(x[j]);
  }
}

// The first call.pages blocks along x each decode a page of kv head y, the others q.
template <int D>
__global__ void __launch_bounds__(kThreads) GatherKernel(const __grid_constant__ FusedCall call) {
  const SequenceOnDevice s = call.arguments.batch[blockIdx.z];
  WaitForPreviousGrid();
  AllowNextGrid();
  if (blockIdx.x < call.pages) return DecodePage<D>(call, s);
  ConvertQueries(call, s, (blockIdx.x - call.pages) * gridDim.y + blockIdx.y);
}

__global__ void __launch_bounds__(kThreads) OutputKernel(const __grid_constant__ FusedCall call) {
  const AttentionArguments& a = call.arguments;
  const SequenceOnDevice s = a.batch[blockIdx.z];
  WaitForPreviousGrid();
  AllowNextGrid();
  uint4 words[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const Eight e(call, s, blockIdx.x, j);
    if (e.exists) words[j] = *reinterpret_cast<const uint4*>(call.out + e.at);
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const Eight e(call, s, blockIdx.x, j);
    const uint32_t w[4] = {words[j].x, words[j].y, words[j].z, words[j].w};
    float2 pairs[4];  // elements i and i + 4
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = __half22float2(*reinterpret_cast<const __half2*>(&w[i]));
    }
    if (!e.exists) return;
    auto* to = reinterpret_cast<float4*>(a.out + e.row * a.heads * a.kv.head_dim + e.column);
    to[0] = {pairs[0].x, pairs[1].x, pairs[2].x, pairs[3].x};
    to[1] = {pairs[0].y, pairs[1].y, pairs[2].y, pairs[3].y};
  }
}

CudnnShape ShapeOf(const AttentionArguments& a, std::span<const SequenceOnDevice> batch) {
  int64_t tokens = 0, keys = kLeastKeys;
  for (const SequenceOnDevice& s : batch) {
    tokens = std::max(tokens, s.tokens);
    keys = std::max(keys, KeysOf(s, a.sliding_window));
  }
  return {.type = CudnnShape::Type::kFloat16,
          .sequences = static_cast<int>(batch.size()),
          .heads = a.heads,
          .kv_heads = a.kv.kv_heads,
          .head_dim = a.kv.head_dim,
          .queries = static_cast<int>((tokens + kTokenStep - 1) / kTokenStep * kTokenStep),
          .keys = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(keys))),
          .causal = true,
          .sliding_window = a.sliding_window,
          .lengths = true};
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
                                       kLeastProducts;
}

unsigned DivideUp(int64_t n, int64_t step) {
  return static_cast<unsigned>((n + step - 1) / step);
}

// Blocks that copy the rows of the longest sequence.
unsigned RowBlocks(const AttentionArguments& a) {
  return DivideUp(int64_t{a.max_tokens} * a.heads * a.kv.head_dim, 8 * kEach * kThreads);
}

void LaunchGather(const FusedCall& call, cudaStream_t stream) {
  const AttentionArguments& a = call.arguments;
  const int d = a.kv.head_dim;
  const auto kernel = d <= 64    ? GatherKernel<64>
                      : d <= 96  ? GatherKernel<96>
                      : d <= 128 ? GatherKernel<128>
                                 : GatherKernel<256>;
  const unsigned heads = static_cast<unsigned>(a.kv.kv_heads);
  const dim3 grid(call.pages + DivideUp(RowBlocks(a), heads), heads, a.sequences);
  LaunchDependent(kernel, {.grid = grid, .block = kThreads}, stream, call);
}

void LaunchOutput(const FusedCall& call, cudaStream_t stream) {
  const AttentionArguments& a = call.arguments;
  LaunchDependent(OutputKernel, {.grid = dim3(RowBlocks(a), 1, a.sequences), .block = kThreads},
                  stream, call);
}

}  // namespace

bool FusedAttention::Takes(const AttentionArguments& a, std::span<const SequenceOnDevice> batch) {
  return std::ranges::all_of(batch, [&](const auto& s) { return IsLong(a, s); }) &&
         Builds(a, batch);
}

bool FusedAttention::Builds(const AttentionArguments& a, std::span<const SequenceOnDevice> batch) {
  bool all = true;
  ForGroups(batch, [&](auto group, size_t) { all = all && cudnn_.Build(ShapeOf(a, group)); });
  return all;
}

void FusedAttention::Run(const AttentionArguments& a, std::span<const SequenceOnDevice> batch,
                         cudaStream_t stream) {
  ForGroups(batch, [&](std::span<const SequenceOnDevice> group, size_t first) {
    const CudnnShape shape = ShapeOf(a, group);
    const int64_t rows = int64_t{shape.sequences} * shape.queries;
    const int64_t keys = int64_t{shape.sequences} * shape.kv_heads * shape.keys;
    const auto halves = [&](DeviceBuffer<uint16_t>& buffer, int64_t count) {
      return reinterpret_cast<__half*>(buffer.Grow(count * shape.head_dim));
    };
    int64_t tokens = 0, most_keys = 0;
    for (const SequenceOnDevice& sequence : group) {
      tokens = std::max(tokens, sequence.tokens);
      most_keys = std::max(most_keys, KeysOf(sequence, a.sliding_window));
    }
    FusedCall call = {.arguments = a,
                      .queries = shape.queries,
                      .keys = shape.keys,
                      .pages = kTilePages * DivideUp(most_keys, kTilePages * kPageKeys),
                      .q = halves(q_, rows * shape.heads),
                      .k = halves(k_, keys),
                      .v = halves(v_, keys),
                      .out = halves(out_, rows * shape.heads),
                      .lengths = lengths_.Grow(2 * static_cast<int64_t>(kTogether))};
    call.arguments.batch += first;
    call.arguments.sequences = shape.sequences;
    call.arguments.max_tokens = static_cast<int>(tokens);
    LaunchGather(call, stream);
    cudnn_.Run(shape,
               {call.q, call.k, call.v, call.out, call.lengths, call.lengths + shape.sequences},
               stream);
    LaunchOutput(call, stream);
  });
}

}  // namespace nibble::cuda
