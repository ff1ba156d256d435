// SPDX-License-Identifier: Apache-2.0
#include "measure/cublas_peer.h"

#include <vector>

#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/graph.h"
#include "measure/cublas_linear.h"

namespace nibble::cuda {
struct CublasProduct::State {
  Stream stream = MakeStream();
  CublasLinear linear;
  AlignedBytes x, w, y;
  Graph graph;
};

CublasProduct::CublasProduct(Type type, int64_t tokens, int64_t rows, int64_t cols, int copies)
    : state_(new State{.linear = CublasLinear(type, tokens, rows, cols, false)}) {
  State& s = *state_;
  s.x = RandomValues(type, tokens * cols, 1);
  s.w = RandomValues(type, rows * cols * copies, 1);
  s.y = AllocateDevice(static_cast<size_t>(tokens * rows) * (type == Type::kInt8 ? 4 : 2));
  std::vector<CublasLinear::Tensors> tensors;
  const int64_t w_bytes = rows * cols * (type == Type::kBf16 ? 2 : 1);
  for (int i = 0; i < copies; ++i) {
    tensors.push_back({s.x.get(), s.w.get() + i * w_bytes, s.y.get()});
  }
  s.linear.Choose(tensors, s.stream.get());
  s.graph = RecordGraph(s.stream.get(), [&] {
    for (const auto& t : tensors) s.linear.Multiply(t, s.stream.get());
  });
}

CublasProduct::~CublasProduct() = default;

void CublasProduct::Run() const {
  PlayGraph(state_->graph, state_->stream.get());
}

void CublasProduct::Wait() {
  CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace nibble::cuda
