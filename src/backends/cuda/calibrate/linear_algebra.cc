// SPDX-License-Identifier: Apache-2.0
// Both libraries count columns first, so that a matrix here is its transpose there.
#include "backends/cuda/calibrate/linear_algebra.h"

#include <cublas_v2.h>
#include <cusolverDn.h>

#include <algorithm>
#include <vector>

#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/shared_library.h"

namespace nibble::cuda {
namespace {

// The overload of the C interface.
using GemmEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                              const void*, const void*, cudaDataType, int, const void*,
                              cudaDataType, int, const void*, void*, cudaDataType, int,
                              cublasComputeType_t, cublasGemmAlgo_t);

// The functions of the libraries, by their own names.
struct Functions {
  decltype(&cublasCreate_v2) create;
  decltype(&cublasDestroy_v2) destroy;
  decltype(&cublasSetStream_v2) set_stream;
  GemmEx* multiply_terms;
  decltype(&cublasSgemm_v2) multiply_single;
  decltype(&cublasSnrm2_v2_64) length;
  decltype(&cublasDgemm_v2) multiply;
  decltype(&cublasDdot_v2_64) dot;
  decltype(&cublasDtrsm_v2) solve;
  decltype(&cusolverDnCreate) create_solver;
  decltype(&cusolverDnDestroy) destroy_solver;
  decltype(&cusolverDnSetStream) set_solver_stream;
  decltype(&cusolverDnCreateParams) create_parameters;
  decltype(&cusolverDnDestroyParams) destroy_parameters;
  decltype(&cusolverDnXpotrf_bufferSize) factor_bytes;
  decltype(&cusolverDnXpotrf) factor;

  static const Functions& Get() {
    static const Functions functions = Load();
    return functions;
  }

 private:
  static Functions Load() {
    const SharedLibrary blas("cuBLAS", {"libcublas.so.13", "libcublas.so.12", "libcublas.so"});
    const SharedLibrary solver("cuSOLVER",
                               {"libcusolver.so.12", "libcusolver.so.11", "libcusolver.so"});
    Functions f = {};
    blas.Find(f.create, "cublasCreate_v2");
    blas.Find(f.destroy, "cublasDestroy_v2");
    blas.Find(f.set_stream, "cublasSetStream_v2");
    blas.Find(f.multiply_terms, "cublasGemmEx");
    blas.Find(f.multiply_single, "cublasSgemm_v2");
    blas.Find(f.length, "cublasSnrm2_v2_64");
    blas.Find(f.multiply, "cublasDgemm_v2");
    blas.Find(f.dot, "cublasDdot_v2_64");
    blas.Find(f.solve, "cublasDtrsm_v2");
    solver.Find(f.create_solver, "cusolverDnCreate");
    solver.Find(f.destroy_solver, "cusolverDnDestroy");
    solver.Find(f.set_solver_stream, "cusolverDnSetStream");
    solver.Find(f.create_parameters, "cusolverDnCreateParams");
    solver.Find(f.destroy_parameters, "cusolverDnDestroyParams");
    solver.Find(f.factor_bytes, "cusolverDnXpotrf_bufferSize");
    solver.Find(f.factor, "cusolverDnXpotrf");
    return f;
  }
};

void Check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    Fail("cuBLAS: {}: status {}", what, static_cast<int>(status));
}

void Check(cusolverStatus_t status, const char* what) {
  if (status != CUSOLVER_STATUS_SUCCESS) {
    Fail("cuSOLVER: {}: status {}", what, static_cast<int>(status));
  }
}

int Int(int64_t value) {
  return static_cast<int>(value);
}

}  // namespace

struct LinearAlgebra::Handles {
  cublasHandle_t blas = nullptr;
  cusolverDnHandle_t solver = nullptr;
  cusolverDnParams_t parameters = nullptr;
  cudaStream_t stream;
  DeviceBuffer<std::byte> workspace;
  DeviceBuffer<int> info;

  explicit Handles(cudaStream_t s) : stream(s) {
    const Functions& f = Functions::Get();
    Check(f.create(&blas), "create");
    Check(f.set_stream(blas, stream), "stream");
    Check(f.create_solver(&solver), "create");
    Check(f.set_solver_stream(solver, stream), "stream");
    Check(f.create_parameters(&parameters), "parameters");
  }
  ~Handles() {
    if (parameters != nullptr) Functions::Get().destroy_parameters(parameters);
    if (solver != nullptr) Functions::Get().destroy_solver(solver);
    if (blas != nullptr) Functions::Get().destroy(blas);
  }
};

LinearAlgebra::LinearAlgebra(cudaStream_t stream) : handles_(std::make_unique<Handles>(stream)) {}
LinearAlgebra::~LinearAlgebra() = default;

void LinearAlgebra::MultiplyTerms(const __nv_bfloat16* left, const __nv_bfloat16* right,
                                  int64_t tokens, int64_t width, float factor, bool accumulate,
                                  float* out) const {
  const float kept = accumulate ? 1 : 0;
  const int n = Int(width);
  Check(
      Functions::Get().multiply_terms(handles_->blas, CUBLAS_OP_N, CUBLAS_OP_T, n, n, Int(tokens),
                                      &factor, right, CUDA_R_16BF, n, left, CUDA_R_16BF, n, &kept,
                                      out, CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "product of bf16 terms");
}

void LinearAlgebra::Multiply(const DenseProduct& p) const {
  const bool a_turned = p.transposed == DenseProduct::Transposed::kA;
  const bool b_turned = p.transposed == DenseProduct::Transposed::kB;
  const float kept = p.accumulate ? 1 : 0;
  Check(Functions::Get().multiply_single(
            handles_->blas, b_turned ? CUBLAS_OP_T : CUBLAS_OP_N,
            a_turned ? CUBLAS_OP_T : CUBLAS_OP_N, Int(p.cols), Int(p.rows), Int(p.inner), &p.factor,
            p.b, Int(b_turned ? p.inner : p.cols), p.a, Int(a_turned ? p.rows : p.inner), &kept,
            p.out, Int(p.cols)),
        "product in fp32");
}

double LinearAlgebra::Length(const float* a, int64_t count) const {
  float length = 0;
  Check(Functions::Get().length(handles_->blas, count, a, 1, &length), "length");
  return length;
}

void LinearAlgebra::Multiply(const Product& p) const {
  const double kept = p.accumulate ? 1 : 0;
  Check(Functions::Get().multiply(handles_->blas, p.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                                  CUBLAS_OP_N, Int(p.cols), Int(p.rows), Int(p.inner), &p.factor,
                                  p.b.data, Int(p.b.stride), p.a.data, Int(p.a.stride), &kept,
                                  p.out, Int(p.stride)),
        "product in fp64");
}

double LinearAlgebra::Dot(const double* a, const double* b, int64_t count) const {
  double sum = 0;
  Check(Functions::Get().dot(handles_->blas, count, a, 1, b, 1, &sum), "dot product");
  return sum;
}

bool LinearAlgebra::Factor(double* a, int64_t n) {
  const Functions& f = Functions::Get();
  Handles& h = *handles_;
  size_t device_bytes = 0, host_bytes = 0;
  Check(f.factor_bytes(h.solver, h.parameters, CUBLAS_FILL_MODE_UPPER, n, CUDA_R_64F, a, n,
                       CUDA_R_64F, &device_bytes, &host_bytes),
        "workspace");
  std::vector<std::byte> host(host_bytes);
  int* const info = h.info.Grow(1);
  Check(f.factor(h.solver, h.parameters, CUBLAS_FILL_MODE_UPPER, n, CUDA_R_64F, a, n, CUDA_R_64F,
                 h.workspace.Grow(static_cast<int64_t>(device_bytes)), device_bytes, host.data(),
                 host_bytes, info),
        "Cholesky factor");
  int first_bad = 0;
  CheckCuda(cudaMemcpyAsync(&first_bad, info, sizeof(first_bad), cudaMemcpyDeviceToHost, h.stream),
            "copy from the GPU");
  CheckCuda(cudaStreamSynchronize(h.stream), "the Cholesky factor");
  return first_bad == 0;
}

// Columns of the identity a block at a time: those of L^-1 begin at the diagonal.
void LinearAlgebra::InvertLower(const double* l, int64_t n, double* x) const {
  constexpr int64_t kColumns = 1024;
  const double one = 1;
  for (int64_t begin = 0; begin < n; begin += kColumns) {
    const int64_t end = std::min(begin + kColumns, n);
    // Rows [begin, end) of x from the first `end` columns: x^T L^T = 1 of the leading block.
    Check(Functions::Get().solve(handles_->blas, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_UPPER,
                                 CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, Int(end), Int(end - begin),
                                 &one, l, Int(n), x + begin * n, Int(n)),
          "triangular inverse");
  }
}

}  // namespace nibble::cuda
