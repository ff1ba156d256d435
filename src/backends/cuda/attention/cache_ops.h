// SPDX-License-Identifier: Apache-2.0
// The ops that write and read the cache (Backend), and the memory they need.
#pragma once

#include <vector>

#include "backends/cuda/attention/attention_fused.h"
#include "backends/cuda/attention/kv_layout.h"
#include "backends/cuda/runtime/device.h"
#include "compute/backend.h"

namespace nibble::cuda {

// A bound on the keys of a decode step that stays the same for many of them, so that recordings do.
int64_t RecordedContext(std::span<const SequenceSlice> batch);

class CacheOps {
 public:
  void RopeAndAppend(Intermediate* q, Intermediate* k, const Intermediate* v,
                     const AttentionSpec& attention, const RopeView& rope, const KvSpec& kv,
                     std::span<const SequenceSlice> batch, cudaStream_t stream);
  void Attention(const Intermediate* q, const AttentionSpec& attention, const KvSpec& kv,
                 std::span<const SequenceSlice> batch, Intermediate* out, cudaStream_t stream);

  // The batch in device memory, [tables][sequences]; copied only when it is new, so once for all
  // layers.
  const SequenceOnDevice* OnDevice(std::span<const SequenceSlice> batch, cudaStream_t stream);

 private:
  // `part`: the sequences that `arguments` mean, whose bounds are not yet known.
  void AttendPart(AttentionArguments arguments, std::span<const SequenceSlice> part,
                  cudaStream_t stream);
  void AttendForms(AttentionArguments narrow, AttentionArguments recent,
                   std::span<const SequenceSlice> part, cudaStream_t stream);
  static AttentionArguments Bounded(AttentionArguments arguments,
                                    std::span<const SequenceSlice> part);

  DeviceBuffer<float> partials_, remainders_, remainder_ends_;
  DeviceBuffer<uint32_t> counters_;
  FusedAttention fused_;
  std::vector<SequenceOnDevice> batch_;  // as batch_on_device_ holds it
  DeviceBuffer<SequenceOnDevice> batch_on_device_;
};

}  // namespace nibble::cuda
