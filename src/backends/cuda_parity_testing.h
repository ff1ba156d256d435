// SPDX-License-Identifier: Apache-2.0
// What tests of the cuda backend against the reference backend share. They need a GPU.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "backends/backend_testing.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/ref/ref_backend.h"

namespace nibble {

inline constexpr float kPoison = -12345.678f;

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

  Rng rng_{7};
  std::unique_ptr<Backend> cuda_;
  const std::unique_ptr<Backend> ref_ = MakeRefBackend(RefMode::kInteger);
};

}  // namespace nibble
