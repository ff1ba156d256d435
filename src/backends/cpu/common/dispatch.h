// SPDX-License-Identifier: Apache-2.0
// Vector ops are compiled for AVX2 and AVX-512 (Highway); a backend calls those of its instruction
// set, whatever others of the program use. Integer kernels are chosen by kernel_table.h.
#pragma once

#include <hwy/targets.h>

#include "base/cpu_features.h"

namespace nibble::cpu {

// The index of the variant for isa, at least kAvx2, in a function's table of variants, which
// HWY_EXPORT(function) makes.
inline size_t VariantOf(Isa isa) {
  const auto index_without = [](int64_t targets) {
    hwy::ChosenTarget chosen;
    chosen.Update(hwy::SupportedTargets() & ~targets);
    return chosen.GetIndex();
  };
  static const size_t avx2 = index_without(HWY_AVX3 | HWY_AVX3_DL), best = index_without(0);
  return isa >= Isa::kAvx512 ? best : avx2;
}

}  // namespace nibble::cpu

#define NIBBLE_DISPATCH(isa, function) \
  (*(HWY_DISPATCH_TABLE(function)[::nibble::cpu::VariantOf(isa)]))
