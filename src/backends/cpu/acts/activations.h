// SPDX-License-Identifier: Apache-2.0
// isa says which instruction set runs (common/dispatch.h), and is at least kAvx2. Rows (tokens) are
// independent, in a fixed order of operations, and spread over the thread pool, so results do not
// depend on batch size or thread count.
#pragma once

#include <cstdint>

#include "base/cpu_features.h"
#include "compute/backend.h"

namespace nibble::cpu {

// Grow-only memory of prepared activations: no allocation once the largest batch was seen.
struct ActsMemory {
  Buffer<float> values, scales, zero_offsets;
  Buffer<int8_t> codes, tiles;
  Buffer<int32_t> sums;
};
struct ActsWorkspace {
  ActsMemory main, tail;
  Activations tail_acts;  // of the last call
};

// The codes are those of QuantizeActivations (formats/quantizer.h) bit for bit. With 16-bit
// activations `values` points to x or into `work`. `tiles`: fill Activations::tiles.
Activations PrepareActs(Isa isa, const ActsSource& source, int64_t tokens, const InputSpec& spec,
                        bool tiles, ActsWorkspace& work);

// Splits prepared 16-bit activations into codes of two planes, rows [2 tokens, stride] and sums: a
// token's row of upper bytes, then its row of lower bytes. A token has one scale.
Activations SplitPlanes(Isa isa, const Activations& acts, bool tiles, ActsMemory& memory);

}  // namespace nibble::cpu
