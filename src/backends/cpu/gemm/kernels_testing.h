// SPDX-License-Identifier: Apache-2.0
// Tests that run for every integer row of the kernel table.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "backends/cpu/gemm/kernel_table.h"
#include "base/rng.h"

namespace nibble::cpu {

inline int64_t Pick(Rng& rng, std::initializer_list<int64_t> values) {
  return values.begin()[rng.Below(values.size())];
}

// Random in lo..hi with both ends frequent: they are what saturates.
inline int64_t Code(Rng& rng, int64_t lo, int64_t hi) {
  const uint64_t kind = rng.Below(8);
  if (kind == 0) return lo;
  if (kind == 1) return hi;
  return lo + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(hi - lo + 1)));
}

class KernelTest : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (!MachineHas(kernel().isa)) GTEST_SKIP() << "needs " << IsaName(kernel().isa);
  }
  static const Kernel& kernel() { return Kernels()[GetParam()]; }
};

inline std::string KernelTestName(const ::testing::TestParamInfo<size_t>& info) {
  return std::string(Kernels()[info.param].name);
}

inline std::vector<size_t> RowsOfIntegers() {
  std::vector<size_t> rows;
  for (size_t i = 0; i < Kernels().size(); ++i) {
    if (Kernels()[i].bits != kValues) rows.push_back(i);
  }
  return rows;
}

}  // namespace nibble::cpu
