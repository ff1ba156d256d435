// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/runtime/graph.h"

#include "backends/cuda/runtime/cuda_error.h"

namespace nibble::cuda {

Graph RecordGraph(cudaStream_t stream, const std::function<void()>& launch) {
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    launch();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    cudaGraphDestroy(graph);
    throw;
  }
  CheckCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  CheckCuda(error, "cudaGraphInstantiate");
  return Graph(executable);
}

void PlayGraph(const Graph& graph, cudaStream_t stream) {
  CheckCuda(cudaGraphLaunch(graph.get(), stream), "cudaGraphLaunch");
}

}  // namespace nibble::cuda
