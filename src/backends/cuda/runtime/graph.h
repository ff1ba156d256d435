// SPDX-License-Identifier: Apache-2.0
// Kernels recorded as a CUDA graph: launching the kernels of a decode step one by one takes the CPU
// longer than they take the GPU.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>

namespace nibble::cuda {

struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
using Graph = std::unique_ptr<CUgraphExec_st, DestroyGraph>;

// The kernels that `launch` enqueues on `stream`, which do not run yet. It must not allocate.
Graph RecordGraph(cudaStream_t stream, const std::function<void()>& launch);
// Enqueues them.
void PlayGraph(const Graph& graph, cudaStream_t stream);

}  // namespace nibble::cuda
