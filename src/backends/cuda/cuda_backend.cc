// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_backend.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "backends/cuda/acts/acts_ops.h"
#include "backends/cuda/acts/embed.h"
#include "backends/cuda/acts/likely.h"
#include "backends/cuda/attention/cache_ops.h"
#include "backends/cuda/calibrate/device_gptq.h"
#include "backends/cuda/calibrate/device_math.h"
#include "backends/cuda/experts/expert_ops.h"
#include "backends/cuda/gemm/device_linear.h"
#include "backends/cuda/gemm/narrow.h"
#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/graph.h"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/runtime/recordings.h"
#include "compute/math_services.h"
#include "tensor/blocks.h"

namespace nibble {
namespace {

using cuda::AllocateDevice;
using cuda::CheckCuda;
using cuda::DeviceBuffer;
using cuda::DeviceLinear;
using cuda::kIntermediate;

// A linear and the product of its input's tail.
struct Linear {
  DeviceLinear main;
  std::optional<DeviceLinear> tail;

  bool AddsTail(const Activations& acts) const { return tail && main.AddsTail(*tail, acts); }
  // Both in one launch.
  DeviceLinear::Product Whole(const DeviceLinear::Output& output) const {
    return {&main, tail ? &*tail : nullptr, output};
  }
};

class CudaServices final : public MathServices {
 public:
  explicit CudaServices(cudaStream_t stream) : stream_(stream) {}
  std::unique_ptr<GptqMath> MakeGptq(int64_t width) override {
    return cuda::MakeDeviceGptq(width, algebra(), stream_);
  }
  std::unique_ptr<DenseMath> MakeDense() override {
    return std::make_unique<cuda::DeviceMath>(algebra(), stream_);
  }

 private:
  // Its libraries are loaded when they are first asked for.
  cuda::LinearAlgebra& algebra() {
    if (!algebra_) algebra_.emplace(stream_);
    return *algebra_;
  }

  cudaStream_t stream_;
  std::optional<cuda::LinearAlgebra> algebra_;
};

class CudaBackend final : public Backend {
 public:
  // The device is selected before anything is made on it.
  explicit CudaBackend(const std::string& device)
      : stream_((cuda::SelectDevice(device), cuda::MakeStream())) {}

  std::string Name() const override;
  int64_t ChunkTokens() const override { return 4096; }  // 1024 leave multiprocessors idle

  std::optional<uint64_t> FreeMemory() const override { return cuda::FreeDeviceBytes(); }
  AlignedBytes Allocate(size_t bytes) override { return AllocateDevice(bytes); }
  void Write(const void* source, size_t bytes, void* target) override {
    cuda::CopyToDevice(source, bytes, target);
  }
  void Copy(const float* source, int64_t count, float* target) override {
    CheckCuda(cudaMemcpyAsync(target, source, static_cast<size_t>(count) * sizeof(float),
                              cudaMemcpyDeviceToDevice, stream_.get()),
              "copy on the GPU");
  }
  void Clear(float* x, int64_t count) override {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    CheckCuda(cudaMemsetAsync(x, 0, bytes, stream_.get()), "cudaMemsetAsync");
  }
  const float* Read(const float* values, int64_t count) override;
  std::vector<Likely> FindLikelyRows(const float* logits, int64_t width, float cap,
                                     std::span<const LikelyQuery> queries) override;
  PackedWeights Share(const PackedWeights& table, AlignedBytes& owner) override;

  LinearId Upload(const PackedLinear& linear) override;
  void Release(LinearId id) override {
    At(id);
    linears_[static_cast<size_t>(id)].reset();
  }
  KernelUse KernelFor(const ProductFormat& product, int64_t tokens) const override {
    return cuda::KernelFor(cuda::Device::Current().major, product, tokens);
  }

  void Embed(const PackedWeights& table, std::span<const int32_t> ids, float scale,
             float* x) override;
  void AddRows(const float* y, std::span<const int32_t> rows, std::span<const float> weights,
               int64_t width, float* x) override {
    cuda::AddRows(y, rows, weights, width, x, stream_.get());
  }
  void AddNormed(const float* y, int64_t tokens, int64_t width, const float* weight, float eps,
                 const float* scale, float* x) override {
    cuda::AddNormed(y, tokens, width, weight, eps, scale, x, stream_.get());
  }
  void AddNormedParts(const float* x, const float* z, int64_t tokens, int64_t parts, int64_t width,
                      const float* weight, float eps, Intermediate* y) override {
    cuda::AddNormedParts(x, z, tokens, parts, width, weight, eps,
                         reinterpret_cast<__nv_bfloat16*>(y), stream_.get());
  }
  void NormRows(Intermediate* x, int64_t tokens, int64_t width, const float* weight,
                float eps) override {
    cuda::NormRows(reinterpret_cast<__nv_bfloat16*>(x), tokens, width, weight, eps, stream_.get());
  }
  Activations PrepareActs(const ActsSource& source, int64_t tokens,
                          const InputSpec& spec) override {
    return acts_.Prepare(source, tokens, spec, stream_.get());
  }
  void Gemm(const Activations& acts, LinearId id, float* y, int64_t y_stride,
            bool accumulate) override {
    if (acts.tokens == 0) return;
    Multiply(acts, At(id), {y, cuda::RealType::kFloat32, y_stride, accumulate});
  }
  void Project(const Activations& acts, std::span<const Projection> outputs) override;
  int64_t IntermediateBytes() const override { return 2; }
  ActsSource ProjectGated(const Activations& acts, Projection gate, Projection up,
                          const GateSpec& gating) override {
    const DeviceLinear &a = At(gate.id).main, &b = At(up.id).main;
    if (acts.tail != nullptr || !DeviceLinear::CanGate(a, b, gating, acts.tokens)) {
      return Backend::ProjectGated(acts, gate, up, gating);
    }
    DeviceLinear::MultiplyGated(acts, a, b, gating, gate.y, stream_.get());
    return {.op = ActsSource::Op::kIntermediate, .values = gate.y};
  }
  std::optional<ExpertsId> JoinExperts(const ExpertsSpec& spec) override;
  void ReleaseExperts(ExpertsId id) override { experts_.at(static_cast<size_t>(id)).reset(); }
  void RunExperts(ExpertsId id, const ActsSource& routed, const ActsSource& source, int64_t tokens,
                  float* x) override {
    const auto& experts = experts_.at(static_cast<size_t>(id));
    NIBBLE_CHECK(experts.has_value(), "experts {}", id);
    expert_ops_.Run(*experts, routed, source, tokens, x, acts_, stream_.get());
  }
  void Transform(const TransformSpec& transform, int64_t tokens,
                 std::span<Intermediate* const> all) override {
    acts_.Transform(transform, tokens, all, stream_.get());
  }
  MathServices& services() override { return services_; }
  const float* Decode(const Activations& acts) override {
    return acts_.Decode(acts, stream_.get());
  }
  void RopeAndAppend(Intermediate* q, Intermediate* k, const Intermediate* v,
                     const AttentionSpec& attention, const RopeView& rope, const KvSpec& kv,
                     std::span<const SequenceSlice> batch) override {
    cache_.RopeAndAppend(q, k, v, attention, rope, kv, batch, stream_.get());
  }
  void Attention(const Intermediate* q, const AttentionSpec& attention, const KvSpec& kv,
                 std::span<const SequenceSlice> batch, Intermediate* out) override {
    cache_.Attention(q, attention, kv, batch, out, stream_.get());
  }
  void Run(const OpsId& id, std::span<const SequenceSlice> batch,
           const std::function<void()>& ops) override;

 private:
  const Linear& At(LinearId id) const {
    const auto i = static_cast<size_t>(id);
    NIBBLE_CHECK(i < linears_.size() && linears_[i].has_value(), "linear {}", id);
    return *linears_[i];
  }
  void Multiply(const Activations& acts, const Linear& linear, const DeviceLinear::Output& output);
  // One part of a linear with its part of the input.
  void MultiplyPart(Activations acts, const DeviceLinear& linear,
                    const DeviceLinear::Output& output) {
    acts.tail = nullptr;
    if (linear.needs_values()) acts.values = acts_.Decode(acts, stream_.get());
    linear.Multiply(acts, output, stream_.get());
  }

  cuda::Stream stream_;
  Buffer<LatticeWords> words_;
  std::deque<std::optional<Linear>> linears_;  // in which they stay where they are
  std::vector<std::optional<cuda::JoinedExperts>> experts_;
  cuda::ExpertOps expert_ops_;
  cuda::ActsOps acts_;

  DeviceBuffer<float> sums_;  // of Multiply
  Buffer<float> host_{cuda::AllocatePinned};
  cuda::DeviceBuffer<cuda::LikelyRow> likely_;
  cuda::DeviceBuffer<cuda::LikelyPart> likely_parts_;
  cuda::CacheOps cache_;
  CudaServices services_{stream_.get()};
  cuda::Recordings<cuda::Graph> recordings_;
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

std::vector<Likely> CudaBackend::FindLikelyRows(const float* logits, int64_t width, float cap,
                                                std::span<const LikelyQuery> queries) {
  const auto count = static_cast<int64_t>(queries.size());
  cuda::LikelyRow* const rows = likely_.Grow(count);
  cuda::FindLikely(logits, width, cap, queries, likely_parts_.Grow(count * cuda::kLikelyParts),
                   rows, stream_.get());
  constexpr int64_t kFloats = sizeof(cuda::LikelyRow) / sizeof(float);
  const auto* const answers = reinterpret_cast<const cuda::LikelyRow*>(
      Read(reinterpret_cast<const float*>(rows), count * kFloats));
  std::vector<Likely> all(queries.size());
  ParallelFor(all.size(), [&](size_t i) {
    const cuda::LikelyRow& row = answers[i];
    const size_t listed = std::min(static_cast<size_t>(row.count), kMaxLikely);
    all[i] = {.finite = row.finite != 0,
              .complete = static_cast<size_t>(row.count) <= kMaxLikely,
              .total = static_cast<double>(row.total),
              .tokens = {row.tokens, row.tokens + listed}};
    std::ranges::sort(all[i].tokens, [](const auto& a, const auto& b) { return a.before(b); });
  });
  return all;
}

LinearId CudaBackend::Upload(const PackedLinear& linear) {
  acts_.MakeReady(linear);  // what no kernel runs is refused with the first layer
  const auto free = std::ranges::find_if(linears_, [](const auto& l) { return !l.has_value(); });
  const auto slot = free != linears_.end() ? free : linears_.emplace(linears_.end());
  const InputSpec& input = linear.input;
  std::optional<DeviceLinear> tail;
  if (input.tail_width > 0) tail.emplace(linear.tail, input.tail_activations, Tensor(), words_);
  slot->emplace(Linear{
      DeviceLinear(linear.weights, input.activations, linear.bias, words_, input.tail_width > 0),
      std::move(tail)});
  return static_cast<LinearId>(slot - linears_.begin());
}

std::optional<ExpertsId> CudaBackend::JoinExperts(const ExpertsSpec& spec) {
  const auto linears = [&](const std::vector<LinearId>& ids) {
    std::vector<const DeviceLinear*> all;
    for (const LinearId id : ids) all.push_back(&At(id).main);
    return all;
  };
  auto joined = cuda::Join(spec, At(spec.router_linear).main, linears(spec.gate), linears(spec.up),
                           linears(spec.down));
  if (!joined) return {};
  const auto free = std::ranges::find_if(experts_, [](const auto& e) { return !e.has_value(); });
  const auto slot = free != experts_.end() ? free : experts_.emplace(experts_.end());
  *slot = std::move(joined);
  return static_cast<ExpertsId>(slot - experts_.begin());
}

// Codes of 8 bits with a scale a row stay as they are; other codes become fp32.
PackedWeights CudaBackend::Share(const PackedWeights& table, AlignedBytes& owner) {
  const bool looked_up = table.format.quantized() ? table.format == FormatSpec{.bits = 8}
                                                  : BlockTypeOf(table.values.dtype) == nullptr;
  if (!looked_up) {
    const Matrix<float> values = nibble::Decode(table);
    return Share(FloatTable(values), owner);
  }
  PackedWeights shared = {.format = table.format, .rows = table.rows, .cols = table.cols};
  owner = AllocateDevice(table.bytes());
  std::byte* at = owner.get();
  for (const Plane& plane : PlanesOf(table.format, table.rows, table.cols)) {
    const Tensor& from = table.*plane.tensor;
    cuda::CopyToDevice(from.data, from.bytes(), at);
    shared.*plane.tensor = {from.dtype, from.shape, at};
    at += from.bytes();
  }
  return shared;
}

void CudaBackend::Embed(const PackedWeights& table, std::span<const int32_t> ids, float scale,
                        float* x) {
  for (const int32_t id : ids) {
    NIBBLE_CHECK(id >= 0 && id < table.rows, "token {} of {}", id, table.rows);
  }
  if (table.format.quantized()) {
    return cuda::Embed(reinterpret_cast<const int8_t*>(table.codes.data),
                       reinterpret_cast<const float*>(table.scales.data), ids, table.cols, scale, x,
                       stream_.get());
  }
  cuda::Embed(table.values.data, cuda::WeightTypeOf(table.values.dtype), ids, table.cols, scale, x,
              stream_.get());
}

// Sums of two products are rounded once, at the end.
void CudaBackend::Multiply(const Activations& acts, const Linear& linear,
                           const DeviceLinear::Output& output) {
  NIBBLE_CHECK((acts.tail != nullptr) == linear.tail.has_value(), "one has a tail");
  if (!linear.tail) return MultiplyPart(acts, linear.main, output);
  if (linear.AddsTail(acts)) {
    const DeviceLinear::Product whole = linear.Whole(output);
    return DeviceLinear::MultiplyAll(acts, {&whole, 1}, stream_.get());
  }
  DeviceLinear::Output last = output;
  if (output.type == cuda::RealType::kFloat32) {
    MultiplyPart(acts, linear.main, output);
    last.accumulate = true;
    return MultiplyPart(*acts.tail, *linear.tail, last);
  }
  const int64_t rows = linear.main.rows();
  NIBBLE_CHECK(output.stride == rows && !output.accumulate);
  DeviceLinear::Output sum = {sums_.Grow(acts.tokens * rows), cuda::RealType::kFloat32, rows,
                              false};
  MultiplyPart(acts, linear.main, sum);
  if (linear.tail->TakesAddend(acts.tokens)) {
    last.addend = static_cast<const float*>(sum.y);
    return MultiplyPart(*acts.tail, *linear.tail, last);
  }
  sum.accumulate = true;
  MultiplyPart(*acts.tail, *linear.tail, sum);
  cuda::Narrow(static_cast<const float*>(sum.y), acts.tokens * rows,
               static_cast<__nv_bfloat16*>(output.y), stream_.get());
}

// Linears of one input share launches. Those of few rows run behind the products of their tails,
// which they add as they are rounded.
void CudaBackend::Project(const Activations& acts, std::span<const Projection> outputs) {
  if (acts.tokens == 0) return;
  int64_t rows = 0;
  for (const Projection& output : outputs) rows += At(output.id).main.rows();
  float* sums = acts.tail == nullptr ? nullptr : sums_.Grow(acts.tokens * rows);
  std::vector<DeviceLinear::Product> tails, products;
  for (const Projection& output : outputs) {
    const Linear& linear = At(output.id);
    const DeviceLinear& main = linear.main;
    DeviceLinear::Product product = linear.Whole({output.y, kIntermediate, main.rows(), false});
    const bool apart = linear.tail && !linear.AddsTail(acts);
    if (main.needs_values() || (apart && !main.TakesAddend(acts.tokens))) {
      Multiply(acts, linear, product.output);
      continue;
    }
    if (apart) {
      product.tail = nullptr, product.output.addend = sums;
      tails.push_back(
          {&*linear.tail, nullptr, {sums, cuda::RealType::kFloat32, main.rows(), false}});
      sums += acts.tokens * main.rows();
    }
    products.push_back(product);
  }
  if (!tails.empty()) {
    Activations last = *acts.tail;
    const auto floats = [](const auto& tail) { return tail.linear->needs_values(); };
    if (std::ranges::any_of(tails, floats)) last.values = acts_.Decode(last, stream_.get());
    DeviceLinear::MultiplyAll(last, tails, stream_.get());
  }
  DeviceLinear::MultiplyAll(acts, products, stream_.get());
}

void CudaBackend::Run(const OpsId& id, std::span<const SequenceSlice> batch,
                      const std::function<void()>& ops) {
  const bool decode = std::ranges::all_of(batch, [](const auto& s) { return s.tokens == 1; });
  if (batch.empty() || !decode) return ops();
  cache_.OnDevice(batch, stream_.get());
  cuda::RecordingKey key = {.ops = id.number,
                            .sequences = static_cast<int64_t>(batch.size()),
                            .context = cuda::RecordedContext(batch),
                            .offset = batch[0].offset};
  for (const SequenceSlice& s : batch) key.rows = std::max(key.rows, s.first_row + 1);
  recordings_.Run(key, cuda::DeviceFrees(),
                  {.launch = ops,
                   .record = [&] { return cuda::RecordGraph(stream_.get(), ops); },
                   .replay = [&](const auto& graph) { cuda::PlayGraph(graph, stream_.get()); }});
}

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(const std::string& device) {
  return std::make_unique<CudaBackend>(device);
}

}  // namespace nibble
