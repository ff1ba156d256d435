// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over a warp or a block, known to all of its threads.
#pragma once

namespace nibble::cuda {

template <typename Operation>
__device__ float WarpReduce(float value, const Operation& operation) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = operation(value, __shfl_xor_sync(~0u, value, distance));
  }
  return value;
}
__device__ inline float WarpSum(float value) {
  return WarpReduce(value, [](float a, float b) { return a + b; });
}
__device__ inline float WarpMax(float value) {
  return WarpReduce(value, [](float a, float b) { return fmaxf(a, b); });
}

// Floats as integers in the same order, for the integer reductions of a warp.
__device__ inline int Ordered(float v) {
  const int bits = __float_as_int(v);
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
__device__ inline float FromOrdered(int bits) {
  return __int_as_float(bits ^ ((bits >> 31) & 0x7FFFFFFF));
}

// Reduces over a block of 32 * kWarps threads, all of which must call.
template <int kWarps, typename Operation>
__device__ float BlockReduce(float value, const Operation& operation) {
  __shared__ float parts[kWarps];
  __syncthreads();  // the last call's parts have been read
  value = WarpReduce(value, operation);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int i = 1; i < kWarps; ++i) value = operation(value, parts[i]);
  return value;
}
template <int kWarps>
__device__ float BlockSum(float value) {
  return BlockReduce<kWarps>(value, [](float a, float b) { return a + b; });
}
template <int kWarps>
__device__ float BlockMax(float value) {
  return BlockReduce<kWarps>(value, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace nibble::cuda
