// SPDX-License-Identifier: Apache-2.0
// Sequences of kernels recorded as CUDA graphs: launching the kernels of a decode step one by one
// takes the CPU longer than they take the GPU.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace nibble::cuda {

// Everything the launches depend on.
using RecordingKey = std::vector<const void*>;

class Recordings {
 public:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<CUgraphExec_st, Destroy>;

  // The kernels that `launch` enqueues on `stream`, which do not run yet.
  static Graph Record(cudaStream_t stream, const std::function<void()>& launch);

  // Plays what was recorded under key(). Otherwise calls `launch`, which enqueues kernels on
  // `stream`, and records them if the key is still that of the last call: then memory has grown as
  // far as it must, and nothing allocates while recording.
  void Run(const std::function<RecordingKey()>& key, cudaStream_t stream,
           const std::function<void()>& launch);
  void clear();

 private:
  std::map<RecordingKey, Graph> graphs_;
  RecordingKey last_;  // of the last call that was not played
};

}  // namespace nibble::cuda
