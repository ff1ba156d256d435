// SPDX-License-Identifier: Apache-2.0
// A linear in device memory, in the form its kernels read.
#pragma once

#include "backends/cuda/acts/prepare_acts.h"
#include "backends/cuda/gemm/kernel_table.h"
#include "backends/cuda/runtime/device.h"
#include "compute/backend.h"

namespace nibble::cuda {

// The type of F32, BF16 or F16 values.
WeightType WeightTypeOf(DType dtype);

class DeviceLinear {
 public:
  // `bias` may have no data. `words`: the table that all linears of codewords share, made by the
  // first one. with_tail: see ProductFormat.
  DeviceLinear(const PackedWeights& weights, const FormatSpec& activations, const Tensor& bias,
               Buffer<LatticeWords>& words, bool with_tail = false);

  // y (+)= W a + bias on `stream`.
  struct Output {
    void* y;  // [tokens, stride]
    RealType type;
    int64_t stride;
    bool accumulate;                // kFloat32 only
    const float* addend = nullptr;  // [tokens, stride] added to y where TakesAddend, or null
  };
  void Multiply(const Activations& acts, const Output& output, cudaStream_t stream) const;
  // True if one launch can add the product of the tail of `acts`.
  bool AddsTail(const DeviceLinear& tail, const Activations& acts) const;
  // Several linears of one input, with tails that they add or without any (null). In decode steps
  // small products share a launch, which saves time between kernels; large ones, which stream
  // weights, would lose bandwidth.
  struct Product {
    const DeviceLinear* linear;
    const DeviceLinear* tail;
    Output output;
  };
  static void MultiplyAll(const Activations& acts, std::span<const Product> products,
                          cudaStream_t stream);
  // MultiplyGated writes the GLU output of gate and up as intermediate values [tokens, rows] in one
  // launch, where CanGate.
  static bool CanGate(const DeviceLinear& gate, const DeviceLinear& up, const GateSpec& gating,
                      int64_t tokens);
  static void MultiplyGated(const Activations& acts, const DeviceLinear& gate,
                            const DeviceLinear& up, const GateSpec& gating, Intermediate* y,
                            cudaStream_t stream);
  // AreExperts: true if these linears can be a mixture's experts. ExpertTerms: the terms that
  // MultiplyExperts or, with `ups`, MultiplyGatedExperts reads.
  static bool AreExperts(std::span<const DeviceLinear* const> linears);
  static Buffer<LinearTerms> ExpertTerms(std::span<const DeviceLinear* const> linears,
                                         std::span<const DeviceLinear* const> ups);
  // Products of a mixture with the rows of experts in `acts`; all products have the same groups.
  // `first` is the linear of the first expert.
  struct Experts {
    const DeviceLinear& first;
    const LinearTerms* terms;  // [experts], on the device
    Output output;
  };
  static void MultiplyExperts(const Activations& acts, std::span<const Experts> products,
                              const ExpertGroups& groups, cudaStream_t stream);
  static void MultiplyGatedExperts(const Activations& acts, const Experts& gate,
                                   const DeviceLinear& up, const GateSpec& gating,
                                   const ExpertGroups& groups, cudaStream_t stream);

  // y = W norm(x) + bias of few tokens, for a router; false unless W is made of floats with a
  // multiple of 4 columns.
  bool MultiplyNormed(const ActsSource& source, int64_t tokens, float* y,
                      cudaStream_t stream) const;

  int64_t rows() const { return rows_; }
  // True if the linear multiplies Activations::values, whatever format the activations have.
  bool needs_values() const { return OfFloats(kind_); }
  bool TakesAddend(int64_t tokens) const { return KernelFor(tokens).takes_addend(); }

 private:
  void UploadFloats(const PackedWeights& weights);
  void UploadCodes(const PackedWeights& weights);
  const Kernel& KernelFor(int64_t tokens) const {
    return ChooseKernel(capability_, kind_, {weights_, activations_, cols_}, tokens);
  }
  GemmArguments Arguments(const Activations& acts, const Output& output,
                          const DeviceLinear* tail = nullptr) const;

  int capability_;  // of the kernels
  WeightKind kind_;
  int piece_;          // inputs
  BlockScales block_;  // of codes_
  FormatSpec weights_, activations_;
  int64_t rows_, cols_, stride_;  // stride: cols rounded up to 128
  WeightType type_ = {};          // of floats
  Buffer<uint8_t> codes_;         // the codes, or floats
  Buffer<float> scales_;          // [rows, weight groups], unless codes_ has them
  Buffer<float> zeros_;           // as scales_, whole numbers; no data when symmetric
  Buffer<float> code_sums_;       // GemmArguments::w_sums, for asymmetric inputs without groups
  Buffer<float> bias_;            // [rows] or no data
  const LatticeWords* words_ = nullptr;  // of codewords
};

}  // namespace nibble::cuda
