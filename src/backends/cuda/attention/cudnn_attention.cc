// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/attention/cudnn_attention.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <map>
#include <unordered_map>

#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/device.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // which the frontend leaves to its user to define
}  // namespace cudnn_frontend

namespace nibble::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Operand : int64_t { kQ, kK, kV, kOut, kQueries, kKeys, kOffsets };

// Once in a program. False if cuDNN, or the shared CUDA runtime that the frontend calls, is
// missing.
bool LoadLibrary() {
  static const bool loaded = [] {
    for (const char* name : {"libcudnn.so.9", "libcudnn.so"}) {
      if ((fe::cudnn_dlhandle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) != nullptr) return true;
    }
    return false;
  }();
  return loaded;
}

void CheckFrontend(fe::error_t error) {
  if (error.is_bad()) throw Error(ErrorCode::kFailed, "cuDNN: " + error.get_message());
}

struct DestroyHandle {
  void operator()(cudnnHandle_t handle) const { fe::detail::destroy_handle(handle); }
};
using Handle = std::unique_ptr<cudnnContext, DestroyHandle>;

// Null if this machine cannot run cuDNN.
Handle MakeHandle() {
  cudnnHandle_t handle = nullptr;
  try {
    if (LoadLibrary() && fe::detail::create_handle(&handle) == CUDNN_STATUS_SUCCESS) {
      return Handle(handle);
    }
  } catch (const std::runtime_error&) {  // a library of another version
  }
  return nullptr;
}

fe::graph::Tensor_attributes TensorOf(Operand name, const std::vector<int64_t>& dims,
                                      const std::vector<int64_t>& strides) {
  return fe::graph::Tensor_attributes().set_uid(name).set_dim(dims).set_stride(strides);
}

std::shared_ptr<fe::graph::Graph> Describe(const CudnnShape& s) {
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const int64_t b = s.sequences, h = s.heads, g = s.kv_heads, d = s.head_dim, m = s.queries,
                n = s.keys;
  const std::vector<int64_t> q_dims = {b, h, m, d}, q_strides = {m * h * d, d, h * d, 1};
  const std::vector<int64_t> k_dims = {b, g, n, d}, k_strides = {g * n * d, n * d, d, 1};
  const auto integers = [&](Operand name, int64_t count) {
    return graph->tensor(
        TensorOf(name, {count, 1, 1, 1}, {1, 1, 1, 1}).set_data_type(fe::DataType_t::INT32));
  };
  const auto offsets = s.ragged ? integers(kOffsets, b + 1) : nullptr;
  const auto q = graph->tensor(TensorOf(kQ, q_dims, q_strides).set_ragged_offset(offsets));
  const auto k = graph->tensor(TensorOf(kK, k_dims, k_strides));
  const auto v = graph->tensor(TensorOf(kV, k_dims, k_strides));
  auto options = fe::graph::SDPA_attributes().set_generate_stats(false).set_attn_scale(s.scale);
  if (s.causal) {
    options.set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
    if (s.sliding_window > 0) options.set_diagonal_band_left_bound(s.sliding_window);
  }
  if (s.ragged) {
    options.set_padding_mask(true)
        .set_seq_len_q(integers(kQueries, b))
        .set_seq_len_kv(integers(kKeys, b));
  }
  const auto out = graph->sdpa(q, k, v, options)[0];
  out->set_output(true).set_uid(kOut).set_dim(q_dims).set_stride(q_strides).set_ragged_offset(
      offsets);
  return graph;
}

}  // namespace

struct CudnnAttention::State {
  Handle handle = MakeHandle();
  std::map<CudnnShape, std::shared_ptr<fe::graph::Graph>> graphs;  // null: cuDNN has none
  DeviceBuffer<std::byte> workspace;
};

CudnnAttention::CudnnAttention() = default;
CudnnAttention::~CudnnAttention() = default;

bool CudnnAttention::Build(const CudnnShape& shape) {
  if (state_ == nullptr) state_ = std::make_unique<State>();
  if (state_->handle == nullptr) return false;
  const auto [at, is_new] = state_->graphs.try_emplace(shape);
  if (is_new) {
    try {
      auto graph = Describe(shape);
      if (graph->build(state_->handle.get(), {fe::HeurMode_t::A}).is_good()) at->second = graph;
    } catch (const std::runtime_error&) {  // a library that does not have every function
    }
  }
  return at->second != nullptr;
}

void CudnnAttention::Run(const CudnnShape& shape, const CudnnTensors& tensors,
                         cudaStream_t stream) {
  const auto& graph = state_->graphs.at(shape);
  const auto plain = [](const void* p) { return const_cast<void*>(p); };
  std::unordered_map<int64_t, void*> memory = {
      {kQ, plain(tensors.q)}, {kK, plain(tensors.k)}, {kV, plain(tensors.v)}, {kOut, tensors.out}};
  if (shape.ragged) {
    memory[kQueries] = plain(tensors.queries), memory[kKeys] = plain(tensors.keys);
    memory[kOffsets] = plain(tensors.offsets);
  }
  int64_t bytes = 0;
  CheckFrontend(graph->get_workspace_size(bytes));
  if (fe::detail::set_stream(state_->handle.get(), stream) != CUDNN_STATUS_SUCCESS) {
    throw Error(ErrorCode::kFailed, "cuDNN: set_stream");
  }
  CheckFrontend(graph->execute(state_->handle.get(), memory, state_->workspace.Grow(bytes)));
}

}  // namespace nibble::cuda
