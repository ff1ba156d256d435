// SPDX-License-Identifier: Apache-2.0
#include "measure/cublas_linear.h"

#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/shared_library.h"
#include "base/error.h"
#include "base/half.h"
#include "base/rng.h"

namespace nibble::cuda {
namespace {

constexpr size_t kWorkspace = size_t{64} << 20;
constexpr int kProposals = 8;

// The functions of the library, by their own names.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmulDescInit_internal) describe;
  decltype(&cublasLtMatmulDescSetAttribute) set_description;
  decltype(&cublasLtMatrixLayoutInit_internal) lay_out;
  decltype(&cublasLtMatmulPreferenceInit_internal) prefer;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) propose;
  decltype(&cublasLtMatmul) multiply;

  static const Library& Get() {
    static const Library library;
    return library;
  }

 private:
  Library() {
    const SharedLibrary file("cuBLASLt",
                             {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"});
    file.Find(create, "cublasLtCreate");
    file.Find(describe, "cublasLtMatmulDescInit_internal");
    file.Find(set_description, "cublasLtMatmulDescSetAttribute");
    file.Find(lay_out, "cublasLtMatrixLayoutInit_internal");
    file.Find(prefer, "cublasLtMatmulPreferenceInit_internal");
    file.Find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    file.Find(propose, "cublasLtMatmulAlgoGetHeuristic");
    file.Find(multiply, "cublasLtMatmul");
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
};

TypeTraits TraitsOf(CublasLinear::Type type) {
  switch (type) {
    case CublasLinear::Type::kBf16:
      return {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F};
    case CublasLinear::Type::kInt8:
      return {CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I, CUDA_R_32I};
    case CublasLinear::Type::kFp8:
      return {CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F};
  }
  NIBBLE_CHECK(false);
}

}  // namespace

struct CublasLinear::State {
  TypeTraits traits;
  int64_t tokens, rows, cols;
  bool accumulate;
  cublasLtHandle_t handle;
  cublasLtMatmulDescOpaque_t description;
  cublasLtMatrixLayoutOpaque_t w_layout, x_layout, y_layout;
  AlignedBytes workspace = AllocateDevice(kWorkspace);
  cublasLtMatmulAlgo_t algorithm;

  cublasStatus_t Multiply(const cublasLtMatmulAlgo_t& chosen, const Tensors& t,
                          cudaStream_t stream) {
    const float one = 1, beta = accumulate ? 1 : 0;
    const int32_t whole_one = 1, whole_beta = accumulate ? 1 : 0;
    const bool integers = traits.scale == CUDA_R_32I;
    return Library::Get().multiply(
        handle, &description, integers ? static_cast<const void*>(&whole_one) : &one, t.w,
        &w_layout, t.x, &x_layout, integers ? static_cast<const void*>(&whole_beta) : &beta, t.y,
        &y_layout, t.y, &y_layout, &chosen, workspace.get(), kWorkspace, stream);
  }

  double Seconds(const cublasLtMatmulAlgo_t& chosen, std::span<const Tensors> tensors,
                 cudaStream_t stream) {
    const auto run = [&](size_t times) {
      for (size_t i = 0; i < times; ++i) {
        if (Multiply(chosen, tensors[i % tensors.size()], stream) != CUBLAS_STATUS_SUCCESS) {
          return false;
        }
      }
      CublasProduct::Wait();
      return true;
    };
    if (!run(2)) return 1e9;
    const auto start = std::chrono::steady_clock::now();
    run(10);
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
};

CublasLinear::CublasLinear(Type type, int64_t tokens, int64_t rows, int64_t cols, bool accumulate)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.traits = TraitsOf(type);
  s.tokens = tokens, s.rows = rows, s.cols = cols, s.accumulate = accumulate;
  s.Describe();
}

CublasLinear::~CublasLinear() = default;

void CublasLinear::Choose(std::span<const Tensors> tensors, cudaStream_t stream) {
  const Library& l = Library::Get();
  State& s = *state_;
  cublasLtMatmulPreferenceOpaque_t preference;
  CheckCublas(l.prefer(&preference, sizeof(preference)), "preference");
  CheckCublas(l.set_preference(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                               sizeof(kWorkspace)),
              "preference");
  cublasLtMatmulHeuristicResult_t proposals[kProposals];
  int count = 0;
  CheckCublas(l.propose(s.handle, &s.description, &s.w_layout, &s.x_layout, &s.y_layout,
                        &s.y_layout, &preference, kProposals, proposals, &count),
              "heuristic");
  double best = 1e9;
  for (int i = 0; i < count; ++i) {
    if (const double seconds = s.Seconds(proposals[i].algo, tensors, stream); seconds < best) {
      best = seconds;
      s.algorithm = proposals[i].algo;
    }
  }
  if (best >= 1e9) Fail("cuBLASLt has no algorithm for {} x {} x {}", s.tokens, s.rows, s.cols);
}

void CublasLinear::Multiply(const Tensors& tensors, cudaStream_t stream) const {
  CheckCublas(state_->Multiply(state_->algorithm, tensors, stream), "multiply");
}

AlignedBytes RandomValues(CublasProduct::Type type, int64_t count, float deviation) {
  Rng rng(3);
  const size_t bytes = static_cast<size_t>(count) * (type == CublasProduct::Type::kBf16 ? 2 : 1);
  std::vector<uint16_t> piece(std::min<size_t>(bytes / 2 + 1, size_t{1} << 20));
  for (uint16_t& v : piece) {
    v = type == CublasProduct::Type::kBf16
            ? Bf16FromF32(static_cast<float>(rng.Normal()) * deviation)
        : type == CublasProduct::Type::kFp8 ? static_cast<uint16_t>(rng.Next()) & 0xB7B7
                                            : static_cast<uint16_t>(rng.Next());
  }
  AlignedBytes memory = AllocateDevice(bytes);
  for (size_t at = 0; at < bytes; at += piece.size() * 2) {
    CopyToDevice(piece.data(), std::min(piece.size() * 2, bytes - at), memory.get() + at);
  }
  return memory;
}

}  // namespace nibble::cuda
