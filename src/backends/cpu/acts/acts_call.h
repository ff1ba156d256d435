// SPDX-License-Identifier: Apache-2.0
// One PrepareActs on its way through activations.cc.
#pragma once

#include "backends/cpu/acts/activations.h"
#include "backends/cpu/acts/transform_plan.h"

namespace nibble::cpu {

// Columns [first, first + width) of the prepared rows.
struct ActsPart {
  int64_t first = 0, width = 0;
  FormatSpec format;
  ActsMemory* memory = nullptr;
  float* values = nullptr;  // [tokens, width]: where activations that are not quantized go
  int64_t stride = 0;       // of codes
  bool tiles = false;
};

struct ActsCall {
  const ActsSource& source;
  const InputSpec& spec;
  const TransformPlan* plan;  // null: no transform
  ActsPart main, tail;        // tail.width = 0: none

  // Rows are made where they shall stay.
  bool in_place() const { return main.values != nullptr && tail.width == 0 && spec.gather.empty(); }
};

}  // namespace nibble::cpu
