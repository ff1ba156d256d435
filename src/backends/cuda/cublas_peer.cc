// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cublas_peer.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/device.h"
#include "base/error.h"
#include "base/half.h"
#include "base/rng.h"

namespace nibble::cuda {
namespace {

constexpr size_t kWorkspace = size_t{64} << 20;
constexpr int kProposals = 8;

// The functions of the library, by their own names.
struct Library {
  void* handle;
  template <typename Function>
  void Find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) Fail("libcublasLt has no {}", name);
  }

  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmulDescInit_internal) describe;
  decltype(&cublasLtMatmulDescSetAttribute) set_description;
  decltype(&cublasLtMatrixLayoutInit_internal) lay_out;
  decltype(&cublasLtMatmulPreferenceInit_internal) prefer;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) propose;
  decltype(&cublasLtMatmul) multiply;

  static const Library& Get() {
    static const Library library = Load();
    return library;
  }

 private:
  static Library Load() {
    Library l = {};
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
      if ((l.handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
    }
    if (l.handle == nullptr) Fail("cuBLASLt is not installed: {}", dlerror());
    l.Find(l.create, "cublasLtCreate");
    l.Find(l.describe, "cublasLtMatmulDescInit_internal");
    l.Find(l.set_description, "cublasLtMatmulDescSetAttribute");
    l.Find(l.lay_out, "cublasLtMatrixLayoutInit_internal");
    l.Find(l.prefer, "cublasLtMatmulPreferenceInit_internal");
    l.Find(l.set_preference, "cublasLtMatmulPreferenceSetAttribute");
    l.Find(l.propose, "cublasLtMatmulAlgoGetHeuristic");
    l.Find(l.multiply, "cublasLtMatmul");
    return l;
  }
};

void CheckCublas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    Fail("cuBLASLt: {}: status {}", what, static_cast<int>(status));
}

struct TypeTraits {
  cudaDataType input, output;
  cublasComputeType_t compute;
  cudaDataType scale;
  size_t input_bytes, output_bytes;
};

TypeTraits TraitsOf(CublasProduct::Type type) {
  switch (type) {
    case CublasProduct::Type::kBf16:
      return {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F, 2, 2};
    case CublasProduct::Type::kInt8:
      return {CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I, CUDA_R_32I, 1, 4};
    case CublasProduct::Type::kFp8:
      return {CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F, 1, 2};
  }
  NIBBLE_CHECK(false);
}

// Normal numbers in bf16, any integers in 8 bits, finite fp8.
AlignedBytes RandomValues(CublasProduct::Type type, size_t bytes) {
  Rng rng(3);
  std::vector<uint16_t> piece(std::min<size_t>(bytes / 2 + 1, size_t{1} << 20));
  for (uint16_t& v : piece) {
    v = type == CublasProduct::Type::kBf16  ? Bf16FromF32(static_cast<float>(rng.Normal()))
        : type == CublasProduct::Type::kFp8 ? static_cast<uint16_t>(rng.Next()) & 0xB7B7
                                            : static_cast<uint16_t>(rng.Next());
  }
  AlignedBytes memory = AllocateDevice(bytes);
  for (size_t at = 0; at < bytes; at += piece.size() * 2) {
    CopyToDevice(piece.data(), std::min(piece.size() * 2, bytes - at), memory.get() + at);
  }
  return memory;
}

}  // namespace

struct CublasProduct::State {
  TypeTraits traits;
  int64_t tokens, rows, cols;
  int copies;
  Stream stream;
  cublasLtHandle_t handle;
  cublasLtMatmulDescOpaque_t description;
  cublasLtMatrixLayoutOpaque_t w_layout, x_layout, y_layout;
  AlignedBytes x, w, y, workspace;
  cublasLtMatmulAlgo_t algorithm;
  cudaGraphExec_t graph = nullptr;

  ~State() {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }

  cublasStatus_t Multiply(const cublasLtMatmulAlgo_t& chosen, int copy) const {
    const float one = 1, zero = 0;
    const int32_t whole_one = 1, whole_zero = 0;
    const bool integers = traits.scale == CUDA_R_32I;
    const size_t w_bytes = static_cast<size_t>(rows * cols) * traits.input_bytes;
    return Library::Get().multiply(handle, const_cast<cublasLtMatmulDescOpaque_t*>(&description),
                                   integers ? static_cast<const void*>(&whole_one) : &one,
                                   w.get() + static_cast<size_t>(copy) * w_bytes,
                                   const_cast<cublasLtMatrixLayoutOpaque_t*>(&w_layout), x.get(),
                                   const_cast<cublasLtMatrixLayoutOpaque_t*>(&x_layout),
                                   integers ? static_cast<const void*>(&whole_zero) : &zero,
                                   y.get(), const_cast<cublasLtMatrixLayoutOpaque_t*>(&y_layout),
                                   y.get(), const_cast<cublasLtMatrixLayoutOpaque_t*>(&y_layout),
                                   &chosen, workspace.get(), kWorkspace, stream.get());
  }

  double Seconds(const cublasLtMatmulAlgo_t& chosen) const {
    for (int i = 0; i < 2; ++i) {
      if (Multiply(chosen, i % copies) != CUBLAS_STATUS_SUCCESS) return 1e9;
    }
    Wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) Multiply(chosen, i % copies);
    Wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // cuBLAS counts columns first: y^T [rows, tokens] = (w^T [cols, rows])^T x^T [cols, tokens].
  void Describe() {
    const Library& l = Library::Get();
    CheckCublas(l.create(&handle), "create");
    CheckCublas(l.describe(&description, sizeof(description), traits.compute, traits.scale),
                "describe");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    CheckCublas(l.set_description(&description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                  sizeof(transposed)),
                "transpose");
    const auto lay_out = [&](cublasLtMatrixLayoutOpaque_t& layout, cudaDataType type, int64_t inner,
                             int64_t outer) {
      CheckCublas(l.lay_out(&layout, sizeof(layout), type, static_cast<uint64_t>(inner),
                            static_cast<uint64_t>(outer), inner),
                  "layout");
    };
    lay_out(w_layout, traits.input, cols, rows);
    lay_out(x_layout, traits.input, cols, tokens);
    lay_out(y_layout, traits.output, rows, tokens);
  }

  void Choose() {
    const Library& l = Library::Get();
    cublasLtMatmulPreferenceOpaque_t preference;
    CheckCublas(l.prefer(&preference, sizeof(preference)), "preference");
    CheckCublas(l.set_preference(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                 sizeof(kWorkspace)),
                "preference");
    cublasLtMatmulHeuristicResult_t proposals[kProposals];
    int count = 0;
    CheckCublas(l.propose(handle, &description, &w_layout, &x_layout, &y_layout, &y_layout,
                          &preference, kProposals, proposals, &count),
                "heuristic");
    double best = 1e9;
    for (int i = 0; i < count; ++i) {
      if (const double seconds = Seconds(proposals[i].algo); seconds < best) {
        best = seconds;
        algorithm = proposals[i].algo;
      }
    }
    if (best >= 1e9) Fail("cuBLASLt has no algorithm for {} x {} x {}", tokens, rows, cols);
  }

  void Record() {
    CheckCuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < copies; ++i) CheckCublas(Multiply(algorithm, i), "multiply");
    cudaGraph_t captured = nullptr;
    CheckCuda(cudaStreamEndCapture(stream.get(), &captured), "capture");
    const cudaError_t error = cudaGraphInstantiate(&graph, captured, 0);
    cudaGraphDestroy(captured);
    CheckCuda(error, "cudaGraphInstantiate");
  }
};

CublasProduct::CublasProduct(Type type, int64_t tokens, int64_t rows, int64_t cols, int copies)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.traits = TraitsOf(type);
  s.tokens = tokens, s.rows = rows, s.cols = cols, s.copies = copies;
  s.stream = MakeStream();
  const auto bytes = [](int64_t count, size_t each) { return static_cast<size_t>(count) * each; };
  s.x = RandomValues(type, bytes(tokens * cols, s.traits.input_bytes));
  s.w = RandomValues(type, bytes(rows * cols * copies, s.traits.input_bytes));
  s.y = AllocateDevice(bytes(tokens * rows, s.traits.output_bytes));
  s.workspace = AllocateDevice(kWorkspace);
  s.Describe();
  s.Choose();
  s.Record();
}

CublasProduct::~CublasProduct() = default;

void CublasProduct::Run() const {
  CheckCuda(cudaGraphLaunch(state_->graph, state_->stream.get()), "cudaGraphLaunch");
}

void CublasProduct::Wait() {
  CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace nibble::cuda
