// SPDX-License-Identifier: Apache-2.0
// In a build without cuDNN.
#include "backends/cuda/attention/cudnn_attention.h"

namespace nibble::cuda {

struct CudnnAttention::State {};

CudnnAttention::CudnnAttention() = default;
CudnnAttention::~CudnnAttention() = default;

bool CudnnAttention::Build(const CudnnShape&) {
  return false;
}

void CudnnAttention::Run(const CudnnShape&, const CudnnTensors&, cudaStream_t) {}

}  // namespace nibble::cuda
