// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/calibrate/device_gptq.h"

#include <algorithm>
#include <numeric>

#include "backends/cuda/calibrate/gptq_kernels.h"
#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/device.h"
#include "formats/lattice_codes.h"

namespace nibble::cuda {
namespace {

class DeviceGptq final : public GptqMath {
 public:
  DeviceGptq(int64_t width, LinearAlgebra& algebra, cudaStream_t stream)
      : width_(width), algebra_(algebra), stream_(stream) {
    hessian_.Grow(width * width);
  }

  void Add(const float* x, const float* exact, int64_t tokens,
           std::span<const float> weights) override;
  std::vector<double> Diagonal() override;
  bool Factor(std::span<const int64_t> order, std::span<const double> added) override;
  GptqLoss Round(const GptqRounding& rounding) override;

 private:
  struct Terms {
    DeviceBuffer<__nv_bfloat16> high, low;
  };
  // One matrix while it is rounded.
  struct Work {
    DeviceBuffer<double> original, corrected, w, product, errors, tail;
    DeviceBuffer<float> scales;
    DeviceBuffer<int32_t> zeros;
    DeviceBuffer<int8_t> codes;
    DeviceBuffer<uint32_t> codewords;
    Buffer<LatticeWords> words;

    CodesOnDevice Codes(const GptqRounding& r) const {
      return {.codes = codes.data(),
              .scales = scales.data(),
              .zeros = zeros.data(),
              .columns = r.columns,
              .group = r.group,
              .bits = r.bits,
              .sparse = r.sparse,
              .codewords = codewords.data(),
              .words = words.data()};
    }
  };

  void Split(const float* x, const float* minus, const float* weights, int64_t tokens,
             Terms& terms) const {
    const int64_t count = tokens * width_;
    SplitTerms({x, minus, weights, tokens, width_, terms.high.Grow(count), terms.low.Grow(count)},
               stream_);
  }
  bool Corrects(const GptqRounding& r) const {
    return r.correction != 0 && correction_.data() != nullptr;
  }
  void Correct(const GptqRounding& r, Work& work) const;
  void Upload(const GptqRounding& r, Work& work) const;
  void UploadGrids(const GptqRounding& r, Work& work) const;
  void FindGrids(const GptqRounding& r, int64_t begin, Work& work) const;
  void RoundChunk(const GptqRounding& r, int64_t begin, int64_t end, Work& work) const;
  void RoundTail(const GptqRounding& r, Work& work) const;
  void Sweep(const GptqRounding& r, Work& work) const;
  void MakeErrors(const GptqRounding& r, const double* of, Work& work) const;
  double Power(const double* m, int64_t rows, Work& work) const;

  template <typename T>
  void ToDevice(std::span<const T> values, T* target) const {
    CheckCuda(cudaMemcpyAsync(target, values.data(), values.size_bytes(), cudaMemcpyHostToDevice,
                              stream_),
              "copy to the GPU");
  }
  // `count` pieces of T[length], `stride` elements apart on the GPU.
  template <typename T>
  void ToHost(const T* source, int64_t stride, int64_t length, int64_t count, T* target) const {
    const size_t bytes = static_cast<size_t>(length) * sizeof(T);
    CheckCuda(cudaMemcpy2DAsync(target, bytes, source, static_cast<size_t>(stride) * sizeof(T),
                                bytes, static_cast<size_t>(count), cudaMemcpyDeviceToHost, stream_),
              "copy from the GPU");
    CheckCuda(cudaStreamSynchronize(stream_), "a kernel");
  }

  int64_t width_;
  LinearAlgebra& algebra_;
  cudaStream_t stream_;
  DeviceBuffer<double> hessian_, correction_;  // [width, width]; H up to its antisymmetric part
  DeviceBuffer<double> lower_, u_;             // [width, width]
  DeviceBuffer<float> product_;                // [width, width], of one call of Add
  Terms x_, difference_;
  DeviceBuffer<float> weights_;           // [tokens], of a call of Add
  DeviceBuffer<int32_t> order_, places_;  // [width]: of Factor, and its inverse
  DeviceBuffer<double> added_;            // [width]
};

// x = high + low: high^T high + high^T low + low^T high is the symmetric part of
// high^T (high + 2 low), and that part is all that Factor and Power use.
void DeviceGptq::Add(const float* x, const float* exact, int64_t tokens,
                     std::span<const float> weights) {
  if (!weights.empty()) ToDevice(weights, weights_.Grow(tokens));
  const float* const of_tokens = weights.empty() ? nullptr : weights_.data();
  const int64_t count = width_ * width_;
  float* const product = product_.Grow(count);
  Split(x, nullptr, of_tokens, tokens, x_);
  const __nv_bfloat16 *high = x_.high.data(), *low = x_.low.data();
  algebra_.MultiplyTerms(high, high, tokens, width_, 1, false, product);
  algebra_.MultiplyTerms(high, low, tokens, width_, 2, true, product);
  AddProduct(product, count, hessian_.data(), stream_);
  if (exact == nullptr) return;
  Split(exact, x, of_tokens, tokens, difference_);
  algebra_.MultiplyTerms(difference_.high.data(), high, tokens, width_, 1, false, product);
  algebra_.MultiplyTerms(difference_.high.data(), low, tokens, width_, 1, true, product);
  algebra_.MultiplyTerms(difference_.low.data(), high, tokens, width_, 1, true, product);
  AddProduct(product, count, correction_.Grow(count), stream_);
}

std::vector<double> DeviceGptq::Diagonal() {
  std::vector<double> diagonal(static_cast<size_t>(width_));
  ToHost(hessian_.data(), width_ + 1, 1, width_, diagonal.data());
  return diagonal;
}

// With J the reversal, J (H + D) J = L L^T gives H + D = R R^T for the upper R = J L J, so that
// U = R^-1 = J L^-1 J: one factor and one inverse.
bool DeviceGptq::Factor(std::span<const int64_t> order, std::span<const double> added) {
  const std::vector<int32_t> narrow(order.begin(), order.end());
  std::vector<int32_t> places(narrow.size());
  for (size_t i = 0; i < narrow.size(); ++i) {
    places[static_cast<size_t>(narrow[i])] = static_cast<int32_t>(i);
  }
  ToDevice<int32_t>(narrow, order_.Grow(width_));
  ToDevice<int32_t>(places, places_.Grow(width_));
  ToDevice<double>(added, added_.Grow(width_));
  double *const lower = lower_.Grow(width_ * width_), *const u = u_.Grow(width_ * width_);
  PermuteSquare({.in = hessian_.data(),
                 .order = order_.data(),
                 .added = added_.data(),
                 .n = width_,
                 .out = lower},
                stream_);
  if (!algebra_.Factor(lower, width_)) return false;
  SetIdentity(width_, u, stream_);
  algebra_.InvertLower(lower, width_, u);
  Reverse(u, width_ * width_, stream_);
  return true;
}

// w, in rounding order, += correction W C U^T U; and the sum in the columns' own order.
void DeviceGptq::Correct(const GptqRounding& r, Work& work) const {
  const int64_t rows = r.weights.rows, n = width_;
  double* const moved = work.corrected.Grow(rows * n);
  const auto multiply = [&](const double* a, const double* b, bool transposed, double factor,
                            bool accumulate, double* out) {
    algebra_.Multiply({.a = {a, n},
                       .b = {b, n},
                       .transposed = transposed,
                       .rows = rows,
                       .inner = n,
                       .cols = n,
                       .factor = factor,
                       .accumulate = accumulate,
                       .out = out,
                       .stride = n});
  };
  multiply(work.original.data(), correction_.data(), false, r.correction, false,
           work.product.data());
  PermuteColumns(work.product.data(), order_.data(), rows, n, moved, stream_);
  multiply(moved, u_.data(), true, 1, false, work.product.data());
  multiply(work.product.data(), u_.data(), false, 1, true, work.w.data());
  PermuteColumns(work.w.data(), places_.data(), rows, n, moved, stream_);
}

void DeviceGptq::Upload(const GptqRounding& r, Work& work) const {
  const int64_t rows = r.weights.rows, count = rows * width_;
  ToDevice<double>(r.weights.data, work.original.Grow(count));
  PermuteColumns(work.original.data(), order_.data(), rows, width_, work.w.Grow(count), stream_);
  work.product.Grow(count);
  if (Corrects(r)) Correct(r, work);
  work.errors.Grow(rows * kGptqChunk);
  work.codes.Grow(rows * r.columns);
  if (!r.codewords.empty()) {
    NIBBLE_CHECK(r.sweeps == 0, "sweeps of codewords");
    work.codewords.Grow(static_cast<int64_t>(r.codewords.size()));
    work.words = cuda::ToDevice(std::span(&LatticeCode::Words(), 1));
  }
  UploadGrids(r, work);
}

void DeviceGptq::UploadGrids(const GptqRounding& r, Work& work) const {
  const auto grids = static_cast<int64_t>(r.scales.size());
  ToDevice<float>(r.scales, work.scales.Grow(grids));
  ToDevice<int32_t>(r.zeros, work.zeros.Grow(grids));
}

void DeviceGptq::FindGrids(const GptqRounding& r, int64_t begin, Work& work) const {
  std::vector<double> columns(static_cast<size_t>(r.weights.rows * r.group));
  ToHost(work.w.data() + begin, width_, r.group, r.weights.rows, columns.data());
  r.find_grids(begin / r.group, 0, columns);
  UploadGrids(r, work);
}

void DeviceGptq::RoundChunk(const GptqRounding& r, int64_t begin, int64_t end, Work& work) const {
  const int64_t rows = r.weights.rows;
  RoundColumns({.w = work.w.data(),
                .rows = rows,
                .cols = width_,
                .begin = begin,
                .end = end,
                .u = u_.data(),
                .order = order_.data(),
                .original = work.original.data(),
                .pull = r.codewords.empty() ? r.pull : 0,
                .to = work.Codes(r),
                .errors = work.errors.data()},
               stream_);
  if (end == width_) return;
  algebra_.Multiply({.a = {work.errors.data(), kGptqChunk},
                     .b = {u_.data() + begin * width_ + end, width_},
                     .rows = rows,
                     .inner = end - begin,
                     .cols = width_ - end,
                     .factor = -1,
                     .accumulate = true,
                     .out = work.w.data() + end,
                     .stride = width_});
}

void DeviceGptq::RoundTail(const GptqRounding& r, Work& work) const {
  const int64_t rows = r.weights.rows, count = width_ - r.columns;
  std::vector<double> tail(static_cast<size_t>(rows * count));
  ToHost(work.w.data() + r.columns, width_, count, rows, tail.data());
  r.round_tail(tail);
  ToDevice<double>(tail, work.tail.Grow(rows * count));
}

// tr(M H M^T)
double DeviceGptq::Power(const double* m, int64_t rows, Work& work) const {
  algebra_.Multiply({.a = {m, width_},
                     .b = {hessian_.data(), width_},
                     .rows = rows,
                     .inner = width_,
                     .cols = width_,
                     .out = work.product.data(),
                     .stride = width_});
  return algebra_.Dot(m, work.product.data(), rows * width_);
}

// Writes the errors to work.w, which rounding no longer needs.
void DeviceGptq::MakeErrors(const GptqRounding& r, const double* of, Work& work) const {
  RoundingError({.of = work.Codes(r),
                 .tail = work.tail.data(),
                 .w = of,
                 .rows = r.weights.rows,
                 .cols = width_,
                 .error = work.w.data()},
                stream_);
}

void DeviceGptq::Sweep(const GptqRounding& r, Work& work) const {
  MakeErrors(r, (Corrects(r) ? work.corrected : work.original).data(), work);
  std::vector<int32_t> backwards(static_cast<size_t>(width_));
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  DeviceBuffer<int32_t> order;
  ToDevice<int32_t>(backwards, order.Grow(width_));
  // The factor has done its work.
  double* const hessian = lower_.data();
  PermuteSquare({.in = hessian_.data(),
                 .order = order.data(),
                 .added = added_.data(),
                 .n = width_,
                 .out = hessian},
                stream_);
  for (int pass = 0; pass < r.sweeps; ++pass) {
    for (int64_t begin = 0; begin < r.columns; begin += kGptqChunk) {
      const int64_t end = std::min<int64_t>(begin + kGptqChunk, r.columns);
      algebra_.Multiply({.a = {work.w.data(), width_},
                         .b = {hessian + begin, width_},
                         .rows = r.weights.rows,
                         .inner = width_,
                         .cols = end - begin,
                         .out = work.errors.data(),
                         .stride = kGptqChunk});
      SweepColumns({.gradients = work.errors.data(),
                    .rows = r.weights.rows,
                    .cols = width_,
                    .begin = begin,
                    .end = end,
                    .hessian = hessian,
                    .of = work.Codes(r),
                    .errors = work.w.data()},
                   stream_);
    }
  }
}

GptqLoss DeviceGptq::Round(const GptqRounding& r) {
  Work work;
  Upload(r, work);
  const int64_t rows = r.weights.rows;
  for (int64_t begin = 0, end; begin < r.columns; begin = end) {
    end = std::min<int64_t>(begin + kGptqChunk, r.columns);
    if (r.find_grids) {
      end = std::min(end, (begin / r.group + 1) * r.group);
      if (begin % r.group == 0) FindGrids(r, begin, work);
    }
    RoundChunk(r, begin, end, work);
  }
  if (r.round_tail) RoundTail(r, work);
  if (r.sweeps > 0) Sweep(r, work);
  MakeErrors(r, work.original.data(), work);
  ToHost(work.codes.data(), r.columns, r.columns, rows, r.codes.data());
  if (!r.codewords.empty()) {
    const auto codewords = static_cast<int64_t>(r.codewords.size());
    ToHost(work.codewords.data(), codewords, codewords, 1, r.codewords.data());
  }
  GptqLoss loss = {.power = Power(work.original.data(), rows, work)};
  loss.error = Power(work.w.data(), rows, work);
  return loss;
}

}  // namespace

std::unique_ptr<GptqMath> MakeDeviceGptq(int64_t width, LinearAlgebra& algebra,
                                         cudaStream_t stream) {
  return std::make_unique<DeviceGptq>(width, algebra, stream);
}

}  // namespace nibble::cuda
