// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/selected_isa.h"

#include <hwy/highway.h>

namespace nibble::cpu {
namespace {

Isa selected = Isa::kAvx2;

}  // namespace

void SelectIsa(Isa isa) {
  selected = isa;
  hwy::DisableTargets(isa >= Isa::kAvx512 ? 0 : HWY_AVX3 | HWY_AVX3_DL);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

Isa SelectedIsa() {
  return selected;
}

}  // namespace nibble::cpu
