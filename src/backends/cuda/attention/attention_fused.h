// SPDX-License-Identifier: Apache-2.0
// Attention of long prompts: keys and values of the cache are decoded to bf16 tensors, over which
// cuDNN attends with q and the result where they are. Up to four sequences at a time, whose numbers
// of tokens and of keys are rounded up: a kernel of cuDNN is built for one shape, but told the true
// lengths.
#pragma once

#include <span>

#include "backends/cuda/attention/attention.h"
#include "backends/cuda/attention/cudnn_attention.h"
#include "backends/cuda/runtime/device.h"

namespace nibble::cuda {

class FusedAttention {
 public:
  // True if each sequence of a batch has so much to compute that the tensors, and in the long run
  // the building of kernels, pay for themselves, and if cuDNN has the kernels, which this builds.
  // `batch` is in host memory.
  bool Takes(const AttentionArguments& arguments, std::span<const SequenceOnDevice> batch);
  // Enqueues attention (attention.h) of any batch for which Builds says yes. Needs no counters and
  // no partials.
  void Run(const AttentionArguments& arguments, std::span<const SequenceOnDevice> batch,
           cudaStream_t stream);
  bool Builds(const AttentionArguments& arguments, std::span<const SequenceOnDevice> batch);

 private:
  CudnnAttention cudnn_;
  DeviceBuffer<uint16_t> k_, v_;   // bf16
  DeviceBuffer<int32_t> numbers_;  // lengths and offsets
};

}  // namespace nibble::cuda
