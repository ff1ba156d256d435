// SPDX-License-Identifier: Apache-2.0
// A backend beside the reference backend, once per machine: the instruction sets of this CPU, and
// its GPU. Tests of a GPU are skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend_testing.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "compute/gpu_testing.h"

namespace nibble {

inline std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : kVectorIsas) {
    if (MachineHas(isa)) isas.push_back(isa);
  }
  return isas;
}

inline constexpr float kPoison = -12345.678f;

// Memory of a backend, and its intermediate values: fp32, or bf16 on a GPU.
class MachineTest {
 protected:
  Buffer<float> Copy(std::span<const float> values) { return ToBackend(*ours_, values); }
  std::vector<float> Host(const float* values, int64_t count) {
    const float* host = ours_->Read(values, count);
    return {host, host + count};
  }
  // The value after rounding to an intermediate value.
  float Kept(float value) const {
    return ours_->IntermediateBytes() == 2 ? F32FromBf16(Bf16FromF32(value)) : value;
  }
  // Rounds `values` to intermediate values and copies them into the backend's memory.
  Buffer<Intermediate> CopyValues(std::vector<float>& values) {
    for (float& v : values) v = Kept(v);
    std::vector<uint16_t> halves;
    for (const float v : values) halves.push_back(Bf16FromF32(v));
    halves.resize(halves.size() + halves.size() % 2);  // HostValues reads in pairs
    const bool narrow = ours_->IntermediateBytes() == 2;
    const auto bytes = narrow ? std::as_bytes(std::span(halves)) : std::as_bytes(std::span(values));
    Buffer<Intermediate> buffer(ours_->allocator());
    ours_->Write(bytes.data(), bytes.size(), buffer.Grow(static_cast<int64_t>(bytes.size())));
    return buffer;
  }
  std::vector<float> HostValues(const Intermediate* values, int64_t count) {
    const auto* floats = reinterpret_cast<const float*>(values);
    if (ours_->IntermediateBytes() == sizeof(float)) return Host(floats, count);
    const float* host = ours_->Read(floats, (count + 1) / 2);
    std::vector<float> result;
    for (int64_t i = 0; i < count; ++i) {
      result.push_back(F32FromBf16(reinterpret_cast<const uint16_t*>(host)[i]));
    }
    return result;
  }

  Rng rng_{99};
  std::unique_ptr<Backend> ours_;
  const std::unique_ptr<Backend> ref_ = MakeRefBackend(RefMode::kInteger);
};

// The fixture of TEST_P over instruction sets.
class CpuParityTest : public testing::TestWithParam<Isa>, protected MachineTest {
 protected:
  void SetUp() override { ours_ = MakeCpuBackend(GetParam()); }
};

// The fixture of TEST_F on a GPU.
class GpuParityTest : public testing::Test, protected MachineTest {
 protected:
  void SetUp() override {
    if (!(ours_ = GpuOrNull())) GTEST_SKIP() << "needs a GPU";
  }
};

// The fixture of TEST_P over machines, such as "avx2" or "cuda".
class ParityTest : public testing::TestWithParam<std::string>, protected MachineTest {
 protected:
  void SetUp() override {
    for (const Isa isa : SupportedIsas()) {
      if (GetParam() == IsaName(isa)) ours_ = MakeCpuBackend(isa);
    }
    if (!ours_ && !(ours_ = GpuOrNull())) GTEST_SKIP() << "needs a GPU";
  }
};

inline std::vector<std::string> Machines() {
  std::vector<std::string> machines;
  for (const Isa isa : SupportedIsas()) machines.emplace_back(IsaName(isa));
  const auto gpu = [](const MachineKernels& m) { return m.name.starts_with("cuda"); };
  if (std::ranges::any_of(EveryMachine(), gpu)) machines.emplace_back("cuda");
  return machines;
}

inline std::vector<FormatSpec> ActivationFormats() {
  std::vector<FormatSpec> formats = {{.bits = 16}};
  for (const int bits : {4, 6, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const int64_t group : {0, 32, 128}) {
        formats.push_back({.bits = bits,
                           .symmetric = symmetric,
                           .group = group,
                           .clip = group == 32 ? 1.0 : 0.9});
      }
    }
    formats.push_back({.bits = bits, .clip = 0.8, .signed_scale = true});
    formats.push_back({.bits = bits, .group = 32, .signed_scale = true});
  }
  return formats;
}

// A machine below AVX2 has no cpu backend and no such tests.
#define NIBBLE_EVERY_ISA(suite)                         \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite); \
  INSTANTIATE_TEST_SUITE_P(                             \
      Isa, suite, testing::ValuesIn(SupportedIsas()),   \
      [](const auto& suite_info) { return std::string(IsaName(suite_info.param)); })

#define NIBBLE_EVERY_MACHINE(suite)                                       \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite);                   \
  INSTANTIATE_TEST_SUITE_P(Machine, suite, testing::ValuesIn(Machines()), \
                           [](const auto& suite_info) { return suite_info.param; })

}  // namespace nibble
