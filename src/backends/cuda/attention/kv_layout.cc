// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/attention/kv_layout.h"

#include "formats/kv_format.h"

namespace nibble::cuda {
namespace {

static_assert(kPageKeys == kPageTokens && kPagesBefore == kRecentPages);

KvPart PartOf(const KvSpec& spec, const FormatSpec& format, int64_t codes, int64_t params) {
  const int64_t groups = format.quantized() ? format.groups(spec.head_dim) : 1;
  const auto clip = static_cast<float>(format.clip);
  const int top = format.quantized() ? (1 << (format.bits - 1)) - 1 : 1;
  return {.bits = format.bits,
          .group = static_cast<int>(spec.head_dim / groups),
          .groups = static_cast<int>(groups),
          .row_bytes = static_cast<int>(spec.row_bytes(format)),
          .codes = static_cast<int>(codes),
          .params = static_cast<int>(params),
          .symmetric = format.symmetric,
          .clip = clip,
          .clip_per_step = clip / static_cast<float>(top)};
}

}  // namespace

static_assert(cuda::kMaxHeadDim == nibble::kMaxHeadDim);

KvLayout LayoutOf(const KvSpec& spec, int64_t offset) {
  NIBBLE_CHECK(spec.head_dim % 8 == 0 && spec.head_dim <= kMaxHeadDim, "head_dim {}",
               spec.head_dim);
  return {.kv_heads = static_cast<int>(spec.kv_heads),
          .head_dim = static_cast<int>(spec.head_dim),
          .block_bytes = static_cast<int>(spec.block_bytes()),
          .k = PartOf(spec, spec.k, 0, spec.k_params()),
          .v = PartOf(spec, spec.v, spec.v_codes(), spec.v_params()),
          .offset = offset};
}

}  // namespace nibble::cuda
