// SPDX-License-Identifier: Apache-2.0
// The prepared inputs of products on a GPU (Backend::PrepareActs and Decode), and their memory.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "backends/cuda/acts/device_hadamard.h"
#include "backends/cuda/acts/prepare_acts.h"
#include "backends/cuda/runtime/device.h"
#include "compute/backend.h"

namespace nibble::cuda {

// Vectors of linears in device memory, one for all that are equal. More than the layers of any
// model come only where scales are learned, a new one in each step.
template <typename T>
class OnDevice {
 public:
  // Null where there is none.
  const T* operator()(const std::vector<T>& vector) {
    if (vector.empty()) return nullptr;
    if (known_.size() >= kMax && !known_.contains(vector)) known_.clear();
    const auto [it, added] = known_.try_emplace(vector);
    if (added) it->second = ToDevice(std::span<const T>(vector));
    return it->second.data();
  }

 private:
  static constexpr size_t kMax = 2048;

  std::map<std::vector<T>, Buffer<T>> known_;
};

class ActsOps {
 public:
  Activations Prepare(const ActsSource& source, int64_t tokens, const InputSpec& spec,
                      cudaStream_t stream);
  // Backend::Transform.
  void Transform(const TransformSpec& transform, int64_t tokens, std::span<Intermediate* const> all,
                 cudaStream_t stream);
  // Throws if no kernel runs a transform of the linear.
  void MakeReady(const PackedLinear& linear);
  const float* Decode(const Activations& acts, cudaStream_t stream);

 private:
  // Columns of the prepared rows in one format.
  struct Part {
    DeviceBuffer<int8_t> codes;
    DeviceBuffer<float> values, scales, zero_offsets, decoded;
    DeviceBuffer<int32_t> sums;
    DeviceBuffer<uint16_t> pairs;
    Activations acts;
  };

  // Memory of the part for `tokens` rows of `columns`.
  static PreparePart Place(const FormatSpec& format, int64_t tokens, int64_t columns, Part& part);
  static const float* DecodePart(const Activations& acts, Part& part, cudaStream_t stream);
  const HadamardPlan& PlanFor(const InputSpec& spec);

  Part main_, tail_;
  DeviceBuffer<float> joined_, transformed_;  // whole rows, [tokens, width]
  std::map<std::pair<TransformSpec, int>, DeviceHadamard> hadamards_;  // by transform_bits, too
  OnDevice<int32_t> gathers_;
  OnDevice<float> scales_;
};

}  // namespace nibble::cuda
