// SPDX-License-Identifier: Apache-2.0
// RoPE, the paged cache and attention of the reference backend (ops: compute/backend.h).
#pragma once

#include "compute/backend.h"

namespace nibble::ref {

void RopeAndAppend(float* q, float* k, const float* v, const AttentionSpec& attention,
                   const RopeView& rope, const KvSpec& kv, std::span<const SequenceSlice> batch);

// blas: blocks of queries through fp32 BLAS; otherwise one query at a time with sums in fp64.
void Attention(const float* q, const AttentionSpec& attention, const KvSpec& kv,
               std::span<const SequenceSlice> batch, bool blas, float* out);

}  // namespace nibble::ref
