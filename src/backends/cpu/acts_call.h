// SPDX-License-Identifier: Apache-2.0
// One PrepareActs on its way through activations.cc.
#pragma once

#include "backends/cpu/ops.h"
#include "backends/cpu/transform_plan.h"

namespace nibble::cpu {

struct ActsCall {
  const ActsSource& source;
  const InputSpec& spec;
  const TransformPlan* plan;  // null: no transform
  ActsWorkspace& work;
  float* values = nullptr;  // [tokens, width]: where activations that are not quantized go
  int64_t stride = 0;       // of codes
  bool tiles = false;
};

}  // namespace nibble::cpu
