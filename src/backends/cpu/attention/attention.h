// SPDX-License-Identifier: Apache-2.0
// isa says which instruction set runs (common/dispatch.h), and is at least kAvx2. Rows (tokens) are
// independent, in a fixed order of operations, and spread over the thread pool, so results do not
// depend on batch size or thread count.
#pragma once

#include <span>

#include "base/cpu_features.h"
#include "compute/backend.h"

namespace nibble::cpu {

void RopeAndAppend(Isa isa, float* q, float* k, const float* v, const AttentionSpec& attention,
                   const RopeView& rope, const KvSpec& kv, std::span<const SequenceSlice> batch);

// Backend::Attention; AMX runs it on matrix tiles where the cache's format allows that
// (attention_tiles.h).
void Attention(Isa isa, const float* q, const AttentionSpec& attention, const KvSpec& kv,
               std::span<const SequenceSlice> batch, float* out);

}  // namespace nibble::cpu
