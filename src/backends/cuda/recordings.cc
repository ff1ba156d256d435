// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/recordings.h"

#include "backends/cuda/cuda_error.h"

namespace nibble::cuda {
namespace {

constexpr size_t kMost = 32;  // graphs kept; each takes some megabytes of a GPU

}  // namespace

void Recordings::Run(const std::function<RecordingKey()>& key, cudaStream_t stream,
                     const std::function<void()>& launch) {
  const RecordingKey before = key();
  auto found = graphs_.find(before);
  if (found == graphs_.end()) {
    if (before != last_) {
      launch();
      last_ = key();
      return;
    }
    if (graphs_.size() == kMost) graphs_.clear();
    found = graphs_.emplace(before, Record(stream, launch)).first;
  }
  CheckCuda(cudaGraphLaunch(found->second.get(), stream), "cudaGraphLaunch");
}

void Recordings::clear() {
  graphs_.clear();
  last_.clear();
}

Recordings::Graph Recordings::Record(cudaStream_t stream, const std::function<void()>& launch) {
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

}  // namespace nibble::cuda
