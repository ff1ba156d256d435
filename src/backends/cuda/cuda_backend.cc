// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_backend.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "backends/cuda/cache_ops.h"
#include "backends/cuda/calibration.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/device.h"
#include "backends/cuda/device_gptq.h"
#include "backends/cuda/device_hadamard.h"
#include "backends/cuda/device_linear.h"
#include "backends/cuda/embed.h"
#include "backends/cuda/prepare_acts.h"
#include "backends/cuda/recordings.h"

namespace nibble {
namespace {

using cuda::AllocateDevice;
using cuda::CheckCuda;
using cuda::DeviceBuffer;
using cuda::DeviceLinear;
using cuda::kIntermediate;

constexpr int64_t kCodeStride = 128;  // rows of codes are a multiple of this

cuda::Source SourceOf(ActsSource::Op op) {
  switch (op) {
    case ActsSource::Op::kCopy:
      return cuda::Source::kPlain;
    case ActsSource::Op::kRmsNorm:
      return cuda::Source::kRmsNorm;
    case ActsSource::Op::kSiluMul:
      return cuda::Source::kSiluMul;
  }
  NIBBLE_CHECK(false);
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const std::string& device) {
    cuda::SelectDevice(device);
    stream_ = cuda::MakeStream();
  }

  std::string Name() const override;

  AlignedBytes Allocate(size_t bytes) override { return AllocateDevice(bytes); }
  void Write(const void* source, size_t bytes, void* target) override {
    cuda::CopyToDevice(source, bytes, target);
  }
  void Copy(const float* source, int64_t count, float* target) override {
    CheckCuda(cudaMemcpyAsync(target, source, static_cast<size_t>(count) * sizeof(float),
                              cudaMemcpyDeviceToDevice, stream_.get()),
              "copy on the GPU");
  }
  const float* Read(const float* values, int64_t count) override;
  TensorView Share(const TensorView& tensor, AlignedBytes& owner) override;

  LinearId Upload(const PackedLinear& linear) override;
  void Release(LinearId id) override {
    At(id);
    linears_[static_cast<size_t>(id)].reset();
    recordings_.clear();
  }
  std::string KernelName(LinearId id, int64_t tokens) const override {
    return At(id).KernelName(tokens);
  }

  void Embed(const TensorView& table, std::span<const int32_t> ids, float* x) override;
  Activations PrepareActs(const ActsSource& source, int64_t tokens, const InputSpec& spec) override;
  void Gemm(const Activations& acts, LinearId id, float* y, int64_t y_stride,
            bool accumulate) override {
    if (acts.tokens == 0) return;
    At(id).Multiply(acts, {y, cuda::RealType::kFloat32, y_stride, accumulate}, stream_.get());
  }
  void Project(const Activations& acts, std::span<const Projection> outputs) override {
    if (acts.tokens == 0) return;
    for (const Projection& output : outputs) {
      const DeviceLinear& linear = At(output.id);
      linear.Multiply(acts, {output.y, kIntermediate, linear.rows(), false}, stream_.get());
    }
  }
  int64_t IntermediateBytes() const override { return 2; }
  std::unique_ptr<GptqDevice> MakeGptq(int64_t width) override {
    if (!algebra_) algebra_.emplace(stream_.get());
    return cuda::MakeDeviceGptq(width, *algebra_, stream_.get());
  }
  const float* Decode(const Activations& acts) override;
  void RopeAndAppend(Intermediate* q, Intermediate* k, const Intermediate* v,
                     const AttentionSpec& attention, const RopeView& rope, const KvSpec& kv,
                     std::span<const SequenceSlice> batch) override {
    cache_.RopeAndAppend(q, k, v, attention, rope, kv, batch, stream_.get());
  }
  void Attention(const Intermediate* q, const AttentionSpec& attention, const KvSpec& kv,
                 std::span<const SequenceSlice> batch, float* out) override {
    cache_.Attention(q, attention, kv, batch, out, stream_.get());
  }
  void Run(std::span<const SequenceSlice> batch, std::span<const void* const> tensors,
           const std::function<void()>& ops) override;

 private:
  const DeviceLinear& At(LinearId id) const {
    const auto i = static_cast<size_t>(id);
    NIBBLE_CHECK(i < linears_.size() && linears_[i].has_value(), "linear {}", id);
    return *linears_[i];
  }
  // From pageable memory, which is free again when this returns.
  void CopyAsync(const void* source, size_t bytes, void* target) {
    CheckCuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, stream_.get()),
              "copy to the GPU");
  }
  cuda::RecordingKey KeyOf(std::span<const SequenceSlice> batch,
                           std::span<const void* const> tensors) const;
  const cuda::HadamardPlan& PlanFor(const TransformSpec& spec);

  cuda::Stream stream_;
  std::vector<std::optional<DeviceLinear>> linears_;
  std::map<std::string, cuda::DeviceHadamard> hadamards_;  // by their text

  DeviceBuffer<int8_t> codes_;
  DeviceBuffer<float> values_, scales_, zetas_, decoded_;
  DeviceBuffer<int32_t> sums_;
  DeviceBuffer<int32_t> ids_;
  Buffer<float> host_{cuda::AllocatePinned};
  cuda::CacheOps cache_;
  std::optional<cuda::LinearAlgebra> algebra_;
  cuda::Recordings recordings_;
};

std::string CudaBackend::Name() const {
  int device = 0;
  cudaDeviceProp properties;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return fmt::format("cuda:{}, {}", device, properties.name);
}

const float* CudaBackend::Read(const float* values, int64_t count) {
  float* host = host_.Grow(count);
  CheckCuda(cudaMemcpyAsync(host, values, static_cast<size_t>(count) * sizeof(float),
                            cudaMemcpyDeviceToHost, stream_.get()),
            "copy from the GPU");
  CheckCuda(cudaStreamSynchronize(stream_.get()), "a kernel");
  return host;
}

LinearId CudaBackend::Upload(const PackedLinear& linear) {
  const auto free = std::ranges::find_if(linears_, [](const auto& l) { return !l.has_value(); });
  const auto slot = free != linears_.end() ? free : linears_.emplace(linears_.end());
  slot->emplace(linear);
  return static_cast<LinearId>(slot - linears_.begin());
}

TensorView CudaBackend::Share(const TensorView& tensor, AlignedBytes& owner) {
  if (tensor.dtype == DType::kF64) {
    const Matrix<float> narrow = ToF32(tensor);
    return Share({.dtype = DType::kF32,
                  .shape = tensor.shape,
                  .data = reinterpret_cast<const std::byte*>(narrow.data.data())},
                 owner);
  }
  TensorView shared = tensor;
  owner = AllocateDevice(tensor.bytes());
  cuda::CopyToDevice(tensor.data, tensor.bytes(), owner.get());
  shared.data = owner.get();
  return shared;
}

void CudaBackend::Embed(const TensorView& table, std::span<const int32_t> ids, float* x) {
  for (const int32_t id : ids) {
    NIBBLE_CHECK(id >= 0 && id < table.shape[0], "token {} of {}", id, table.shape[0]);
  }
  if (ids.empty()) return;
  const auto count = static_cast<int64_t>(ids.size());
  CopyAsync(ids.data(), ids.size_bytes(), ids_.Grow(count));
  cuda::Embed(table.data, cuda::WeightTypeOf(table.dtype), ids_.data(), count, table.shape[1], x,
              stream_.get());
}

const cuda::HadamardPlan& CudaBackend::PlanFor(const TransformSpec& spec) {
  return hadamards_.try_emplace(ToJson(spec).dump(), spec).first->second.plan();
}

Activations CudaBackend::PrepareActs(const ActsSource& source, int64_t tokens,
                                     const InputSpec& spec) {
  const FormatSpec& format = spec.activation;
  const int64_t groups = format.quantized() ? format.groups(spec.width) : 1;
  Activations acts = {.tokens = tokens, .spec = &spec};
  const bool gated = source.op == ActsSource::Op::kSiluMul;
  cuda::PrepareArguments a = {.source = SourceOf(source.op),
                              .type = gated ? kIntermediate : cuda::RealType::kFloat32,
                              .x = gated ? static_cast<const void*>(source.gate) : source.x,
                              .up = source.up,
                              .norm = source.norm_weight,
                              .eps = source.norm_eps,
                              .tokens = tokens,
                              .x_stride = spec.width,
                              .width = static_cast<int>(spec.width),
                              .hadamard = PlanFor(spec.transform)};
  if (spec.width % 8 != 0) Fail("no CUDA kernel for rows of {} activations", spec.width);
  if (format.quantized()) {
    if (format.group % 128 != 0) Fail("no CUDA kernel for groups of {} activations", format.group);
    acts.stride = (spec.width + kCodeStride - 1) / kCodeStride * kCodeStride;
    acts.codes = a.codes = codes_.Grow(tokens * acts.stride);
    acts.scales = a.scales = scales_.Grow(tokens * groups);
    acts.zetas = a.zetas = format.symmetric ? nullptr : zetas_.Grow(tokens * groups);
    acts.sums = a.sums = sums_.Grow(tokens * groups);
    a.bits = format.bits, a.symmetric = format.symmetric, a.clip = static_cast<float>(format.clip);
    a.group = static_cast<int>(format.group), a.stride = acts.stride;
  } else if (source.op == ActsSource::Op::kCopy && spec.transform.identity()) {
    acts.values = source.x;
    return acts;
  } else {
    acts.values = a.values = values_.Grow(tokens * spec.width);
  }
  if (tokens > 0) cuda::PrepareActs(a, stream_.get());
  return acts;
}

const float* CudaBackend::Decode(const Activations& acts) {
  const FormatSpec& format = acts.spec->activation;
  if (!format.quantized()) return acts.values;
  const int64_t width = acts.spec->width;
  float* values = decoded_.Grow(acts.tokens * width);
  cuda::DecodeActivations({.codes = acts.codes,
                           .stride = acts.stride,
                           .scales = acts.scales,
                           .zetas = acts.zetas,
                           .tokens = acts.tokens,
                           .width = width,
                           .groups = format.groups(width),
                           .values = values},
                          stream_.get());
  return values;
}

// All that the launches of a decode step depend on, besides what its linears are.
cuda::RecordingKey CudaBackend::KeyOf(std::span<const SequenceSlice> batch,
                                      std::span<const void* const> tensors) const {
  cuda::RecordingKey key(tensors.begin(), tensors.end());
  for (const void* memory : std::initializer_list<const void*>{
           codes_.data(), values_.data(), scales_.data(), zetas_.data(), sums_.data()}) {
    key.push_back(memory);
  }
  cache_.AddTo(batch, key);
  return key;
}

void CudaBackend::Run(std::span<const SequenceSlice> batch, std::span<const void* const> tensors,
                      const std::function<void()>& ops) {
  const bool decode = std::ranges::all_of(batch, [](const auto& s) { return s.tokens == 1; });
  if (!decode) return ops();
  cache_.OnDevice(batch, stream_.get());
  const auto key = [&] { return KeyOf(batch, tensors); };
  recordings_.Run(key, stream_.get(), ops);
}

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(const std::string& device) {
  return std::make_unique<CudaBackend>(device);
}

}  // namespace nibble
