// SPDX-License-Identifier: Apache-2.0
// A TransformSpec made ready for the kernels: its plan, and the entries of its dense factors in
// device memory.
#pragma once

#include <cstdint>
#include <memory>

#include "backends/cuda/acts/hadamard_plan.h"
#include "transforms/hadamard.h"

namespace nibble::cuda {

class DeviceHadamard {
 public:
  // `bits`: InputSpec::transform_bits. With 32 there is no TileHadamard, and dense factors are
  // multiply-adds in fp32, since tensor cores would take them in parts of fewer bits. Throws if the
  // kernels cannot run it: too many dense factors, or one of too large an order.
  explicit DeviceHadamard(const TransformSpec& spec, int bits = 0);
  const HadamardPlan& plan() const { return plan_; }  // valid as long as this object

 private:
  struct Free {
    void operator()(uint32_t* p) const;
  };
  HadamardPlan plan_;
  std::unique_ptr<uint32_t, Free> signs_;
};

}  // namespace nibble::cuda
