// SPDX-License-Identifier: Apache-2.0
// The cpu backend beside the reference backend, once per instruction set of this machine.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "backends/backend_testing.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"

namespace nibble {

inline std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa <= DetectedIsa()) isas.push_back(isa);
  }
  return isas;
}

inline constexpr float kPoison = -12345.678f;

class ParityTest : public testing::TestWithParam<Isa> {
 protected:
  Rng rng_{99};
  const std::unique_ptr<Backend> cpu_ = MakeCpuBackend(GetParam());
  const std::unique_ptr<Backend> ref_ = MakeRefBackend(RefMode::kInteger);
};

// A machine below AVX2 has no cpu backend and no such tests.
#define NIBBLE_EVERY_ISA(suite)                         \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite); \
  INSTANTIATE_TEST_SUITE_P(                             \
      Isa, suite, testing::ValuesIn(SupportedIsas()),   \
      [](const auto& suite_info) { return std::string(IsaName(suite_info.param)); })

}  // namespace nibble
