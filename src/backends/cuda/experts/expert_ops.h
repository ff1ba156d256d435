// SPDX-License-Identifier: Apache-2.0
// The experts of a mixture on a GPU (Backend::RunExperts): the data of one layer's experts, and the
// working memory that all layers share.
#pragma once

#include <optional>

#include "backends/cuda/acts/acts_ops.h"
#include "backends/cuda/experts/routes.h"
#include "backends/cuda/gemm/device_linear.h"

namespace nibble::cuda {

// One layer's experts. Their linears are owned elsewhere.
struct JoinedExperts {
  struct Kind {
    const DeviceLinear* first;
    Buffer<LinearTerms> terms;  // [experts]; gate: with those of up
  };

  ExpertsSpec spec;
  const DeviceLinear* router;
  Kind gate, up, down;
};

// Returns nullopt if no kernels run these experts together.
std::optional<JoinedExperts> Join(const ExpertsSpec& spec, const DeviceLinear& router,
                                  std::span<const DeviceLinear* const> gates,
                                  std::span<const DeviceLinear* const> ups,
                                  std::span<const DeviceLinear* const> downs);

class ExpertOps {
 public:
  void Run(const JoinedExperts& experts, const ActsSource& routed, const ActsSource& source,
           int64_t tokens, float* x, ActsOps& acts, cudaStream_t stream);

 private:
  const float* Logits(const JoinedExperts& experts, const ActsSource& source, int64_t tokens,
                      ActsOps& acts, cudaStream_t stream);
  RouteArguments MakeRoutes(const JoinedExperts& experts, const float* logits, int64_t tokens,
                            cudaStream_t stream);
  // Gathers the rows of all experts, one for each token that an expert has.
  Activations Gather(const Activations& tokens, const RouteArguments& routes, cudaStream_t stream);
  // Multiplies by gate and up. Returns their GLU output, or both for PrepareActs to make it.
  ActsSource Gated(const JoinedExperts& experts, const Activations& rows,
                   const ExpertGroups& groups, cudaStream_t stream);

  DeviceBuffer<int32_t> experts_, places_, row_tokens_, group_count_;
  DeviceBuffer<float> logits_, weights_;
  DeviceBuffer<ExpertGroup> groups_;
  DeviceBuffer<int8_t> codes_;
  DeviceBuffer<float> scales_, zero_offsets_, outputs_;
  DeviceBuffer<int32_t> sums_;
  DeviceBuffer<Intermediate> gate_, up_;
};

}  // namespace nibble::cuda
