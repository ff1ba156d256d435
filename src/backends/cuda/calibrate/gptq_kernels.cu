// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backends/cuda/calibrate/codeword_search.cuh"
#include "backends/cuda/calibrate/gptq_kernels.h"
#include "backends/cuda/runtime/launch.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kWholeWarp = 0xFFFFFFFF;

// The elements of a thread among `count`.
struct Elements {
  int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  int64_t step = int64_t{gridDim.x} * blockDim.x;
};

template <typename Work>
__global__ void ForEach(int64_t count, const Work work) {
  const Elements e;
  for (int64_t i = e.first; i < count; i += e.step) work(i);
}

template <typename Work>
void Launch(int64_t count, cudaStream_t stream, const Work& work) {
  if (count == 0) return;
  const int64_t blocks = std::min<int64_t>((count + kThreads - 1) / kThreads, 1 << 16);
  ForEach<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(count, work);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

// A warp per row. A lane holds every 32nd column, so that what a column changes spreads in four
// steps.
constexpr int kColumns = kGptqChunk / 32;

struct WarpRow {
  int lane, count;  // count: of columns
  int64_t row, groups;
  double low, high;  // codes

  __device__ WarpRow(int64_t begin, int64_t end, const CodesOnDevice& codes)
      : lane(threadIdx.x % 32),
        count(static_cast<int>(end - begin)),
        row(int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32),
        groups(codes.columns / codes.group),
        low(-(1 << (codes.bits - 1))),
        high(-low - 1) {}

  __device__ void Load(const double* from, double (&values)[kColumns]) const {
#pragma unroll
    for (int s = 0; s < kColumns; ++s) values[s] = s * 32 + lane < count ? from[s * 32 + lane] : 0;
  }
};

// Returns a bit for each of the four columns that begin at lane `first`, 1 for the two that stay.
// `cost`: the cost of pruning the lane's own column.
__device__ unsigned CostliestTwo(double cost, int first) {
  double costs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) costs[i] = __shfl_sync(kWholeWarp, cost, first + i);
  unsigned kept = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int larger = 0;  // of equal ones the first counts as larger
#pragma unroll
    for (int j = 0; j < 4; ++j) larger += costs[j] > costs[i] || (costs[j] == costs[i] && j < i);
    kept |= (larger < 2 ? 1u : 0u) << i;
  }
  return kept;
}

// The operations and their order are those of quantize/round/host_gptq.cc, bit for bit.
// kCodewordBits: the bits of codewords, or 0.
template <int kCodewordBits>
__global__ void __launch_bounds__(kThreads) RoundKernel(const __grid_constant__ RoundArguments a) {
  const CodesOnDevice& to = a.to;
  const WarpRow warp(a.begin, a.end, to);
  const auto [lane, count, row, groups, low, high] = warp;
  if (row >= a.rows) return;
  unsigned kept = 0xF;
  const CodewordSearch<kCodewordBits> search(to.words);
  uint32_t codeword[2] = {};
  double w[kColumns];
  warp.Load(a.w + row * a.cols + a.begin, w);
#pragma unroll
  for (int s = 0; s < kColumns; ++s) {
    for (int i = s * 32; i < min(count, s * 32 + 32); ++i) {
      const int64_t column = a.order[a.begin + i], at = row * groups + column / to.group;
      const double moved = __shfl_sync(kWholeWarp, w[s], i % 32);
      const double change = __dsub_rn(moved, a.original[row * a.cols + column]);
      const double value = __dsub_rn(moved, __dmul_rn(a.pull, change));
      const double scale = to.scales[at], zero = to.zeros[at];
      if (to.sparse && i % 4 == 0) {
        const int64_t own = min(a.begin + s * 32 + lane, a.cols - 1);
        const double lost = w[s] / a.u[own * a.cols + own];
        kept = CostliestTwo(__dmul_rn(lost, lost), i % 32);
      }
      double code = zero;
      if constexpr (kCodewordBits != 0) {
        if (i % 8 == 0) {
          float x[8];
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const double weight = __shfl_sync(kWholeWarp, w[s], i % 32 + j);
            x[j] = static_cast<float>(__dmul_rn(weight, search.kUnit / scale));
          }
          const auto [stored, bytes] = search.Find(x);
          codeword[0] = bytes[0], codeword[1] = bytes[1];
          if (lane == 0) to.codewords[(row * to.columns + a.begin + i) / 8] = stored;
        }
        code = static_cast<int8_t>(codeword[i / 4 % 2] >> 8 * (i % 4));
      } else if ((kept >> i % 4 & 1) != 0) {
        code = fmin(fmax(rint(value / scale) + zero, low), high);
      }
      const int64_t u_at = (a.begin + i) * a.cols + a.begin;
      const double error = (value - __dmul_rn(scale, code - zero)) / a.u[u_at + i];
#pragma unroll
      for (int t = s; t < kColumns; ++t) {
        const int j = t * 32 + lane;
        if (j < i || j >= count) continue;
        w[t] = __dsub_rn(w[t], __dmul_rn(error, a.u[u_at + j]));
      }
      if (lane != i % 32) continue;
      to.codes[row * to.columns + column] = static_cast<int8_t>(code);
      a.errors[row * kGptqChunk + i] = error;
    }
  }
}

// The operations are those of quantize/round/host_gptq.cc.
__global__ void __launch_bounds__(kThreads) SweepKernel(const __grid_constant__ SweepArguments a) {
  const CodesOnDevice& of = a.of;
  const WarpRow warp(a.begin, a.end, of);
  const auto [lane, count, row, groups, low, high] = warp;
  if (row >= a.rows) return;
  double gradients[kColumns];
  warp.Load(a.gradients + row * kGptqChunk, gradients);
#pragma unroll
  for (int s = 0; s < kColumns; ++s) {
    for (int i = s * 32; i < min(count, s * 32 + 32); ++i) {
      const int64_t column = a.begin + i, at = row * groups + column / of.group;
      const double* const h = a.hessian + column * a.cols;
      const double scale = of.scales[at], zero = of.zeros[at];
      int8_t* const stored = of.codes + row * of.columns + column;
      if (of.sparse && *stored == zero) continue;  // pruned, or as good as that
      const double value = __dmul_rn(scale, *stored - zero);
      const double wanted = value - __shfl_sync(kWholeWarp, gradients[s], i % 32) / h[column];
      const double code = fmin(fmax(rint(wanted / scale) + zero, low), high);
      const double moved = __dmul_rn(scale, code - zero) - value;
      if (moved == 0) continue;
#pragma unroll
      for (int t = 0; t < kColumns; ++t) {
        const int j = t * 32 + lane;
        if (j < count) gradients[t] = __dadd_rn(gradients[t], __dmul_rn(moved, h[a.begin + j]));
      }
      __syncwarp();
      if (lane != 0) continue;
      *stored = static_cast<int8_t>(code);
      a.errors[row * a.cols + column] += moved;
    }
  }
}

// Blocks of a kernel that gives each row a warp.
template <typename Arguments>
unsigned WarpRows(const Arguments& a, const CodesOnDevice& codes) {
  NIBBLE_CUDA_CHECK(a.begin < a.end && a.end - a.begin <= kGptqChunk && a.end <= codes.columns);
  NIBBLE_CUDA_CHECK(a.rows > 0 && codes.columns <= a.cols && codes.columns % codes.group == 0);
  NIBBLE_CUDA_CHECK(codes.bits >= 2 && codes.bits <= 8);
  NIBBLE_CUDA_CHECK(!codes.sparse || (a.begin % 4 == 0 && a.end % 4 == 0));
  return static_cast<unsigned>((a.rows * 32 + kThreads - 1) / kThreads);
}

}  // namespace

void SplitTerms(const SplitArguments& a, cudaStream_t stream) {
  Launch(a.rows * a.width, stream, [a] __device__(int64_t i) {
    float value = a.minus == nullptr ? a.x[i] : __fsub_rn(a.x[i], a.minus[i]);
    if (a.weights != nullptr) value *= sqrtf(a.weights[i / a.width]);
    a.high[i] = __float2bfloat16_rn(value);
    a.low[i] = __float2bfloat16_rn(__fsub_rn(value, __bfloat162float(a.high[i])));
  });
}

void AddProduct(const float* product, int64_t count, double* sum, cudaStream_t stream) {
  Launch(count, stream, [=] __device__(int64_t i) { sum[i] += product[i]; });
}

void PermuteSquare(const PermuteArguments& a, cudaStream_t stream) {
  Launch(a.n * a.n, stream, [a] __device__(int64_t at) {
    const int64_t i = at / a.n, j = at % a.n;
    const int64_t r = a.order[a.n - 1 - i], c = a.order[a.n - 1 - j];
    const double mean = (a.in[r * a.n + c] + a.in[c * a.n + r]) / 2;
    a.out[at] = i == j ? mean + a.added[r] : mean;
  });
}

void PermuteColumns(const double* in, const int32_t* order, int64_t rows, int64_t n, double* out,
                    cudaStream_t stream) {
  Launch(rows * n, stream,
         [=] __device__(int64_t at) { out[at] = in[at / n * n + order[at % n]]; });
}

void SetIdentity(int64_t n, double* out, cudaStream_t stream) {
  Launch(n * n, stream, [=] __device__(int64_t at) { out[at] = at / n == at % n ? 1 : 0; });
}

void Reverse(double* x, int64_t count, cudaStream_t stream) {
  Launch(count / 2, stream, [=] __device__(int64_t i) {
    const double front = x[i];
    x[i] = x[count - 1 - i];
    x[count - 1 - i] = front;
  });
}

void RoundColumns(const RoundArguments& a, cudaStream_t stream) {
  const auto kernel = a.to.codewords == nullptr ? RoundKernel<0>
                      : a.to.bits == 2          ? RoundKernel<2>
                      : a.to.bits == 3          ? RoundKernel<3>
                                                : RoundKernel<4>;
  NIBBLE_CUDA_CHECK(a.to.codewords == nullptr || (a.begin % 8 == 0 && a.end % 8 == 0));
  kernel<<<WarpRows(a, a.to), kThreads, 0, stream>>>(a);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void SweepColumns(const SweepArguments& a, cudaStream_t stream) {
  SweepKernel<<<WarpRows(a, a.of), kThreads, 0, stream>>>(a);
  CheckCuda(cudaGetLastError(), "kernel launch");
}

void RoundingError(const ErrorArguments& a, cudaStream_t stream) {
  Launch(a.rows * a.cols, stream, [a] __device__(int64_t at) {
    const CodesOnDevice& of = a.of;
    const int64_t row = at / a.cols, column = at % a.cols;
    if (column >= of.columns) {
      a.error[at] = a.tail[row * (a.cols - of.columns) + column - of.columns] - a.w[at];
      return;
    }
    const int64_t grid = row * (of.columns / of.group) + column / of.group;
    const int code = of.codes[row * of.columns + column] - of.zeros[grid];
    const float value = __fmul_rn(of.scales[grid], static_cast<float>(code));
    a.error[at] = static_cast<double>(value) - a.w[at];
  });
}

}  // namespace nibble::cuda
