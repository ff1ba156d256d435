// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <variant>
#include <vector>

#include "backends/cpu/acts/activations.h"
#include "backends/cpu/attention/attention.h"
#include "backends/cpu/gemm/gemm_f32.h"
#include "backends/cpu/gemm/gemm_int.h"
#include "backends/cpu/gemm/gram.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "compute/math_services.h"
#include "formats/quantizer.h"

namespace nibble {
namespace {

// Quantized weights stay integers, and so do their inputs (those of 16 bits as two planes of 8);
// everything else is multiplied in fp32, or on AMX in bf16 terms that add up to it.
struct WideLinear {
  std::variant<cpu::PanelsF32, cpu::PanelsBf16> weights;
  std::vector<float> bias;  // [N] or empty
};
using Weights = std::variant<std::monostate, cpu::IntPanels, WideLinear>;
struct Linear {
  Weights main, tail;  // nothing: not in use; no tail
};

// Some rows of prepared inputs: where they lie together as they are, else copies.
class ChosenRows {
 public:
  void Clear() { copies_.clear(); }

  // Rows valid until Clear.
  Activations Rows(const Activations& acts, std::span<const int32_t> rows) {
    const auto count = static_cast<int64_t>(rows.size());
    if (rows.back() - rows.front() + 1 == count) return From(acts, rows.front(), count);
    Copy& copy = copies_.emplace_back();
    Activations chosen = From(acts, 0, count);
    const auto gather = [&](auto& memory, auto*& plane, int64_t width) {
      if (plane == nullptr) return;
      memory.resize(static_cast<size_t>(count * width));
      for (int64_t i = 0; i < count; ++i) {
        std::copy_n(plane + rows[static_cast<size_t>(i)] * width, width, memory.data() + i * width);
      }
      plane = memory.data();
    };
    const int64_t groups = acts.format.groups(acts.width);
    gather(copy.values, chosen.values, acts.width);
    gather(copy.codes, chosen.codes, acts.stride);
    gather(copy.scales, chosen.scales, groups);
    gather(copy.zero_offsets, chosen.zero_offsets, groups);
    gather(copy.sums, chosen.sums, groups);
    return chosen;
  }

 private:
  struct Copy {
    std::vector<float> values, scales, zero_offsets;
    std::vector<int8_t> codes;
    std::vector<int32_t> sums;
  };

  static Activations From(Activations acts, int64_t first, int64_t count) {
    const int64_t groups = acts.format.groups(acts.width);
    const auto move = [&](auto*& plane, int64_t width) {
      if (plane != nullptr) plane += first * width;
    };
    acts.tokens = count, acts.tiles = nullptr;
    move(acts.values, acts.width), move(acts.codes, acts.stride);
    move(acts.scales, groups), move(acts.zero_offsets, groups), move(acts.sums, groups);
    return acts;
  }

  std::deque<Copy> copies_;
};

class CpuServices final : public MathServices {
 public:
  explicit CpuServices(Isa isa) : isa_(isa) {}
  bool AddGram(const float* left, const float* right, int64_t tokens, int64_t width,
               double* sum) override {
    if (isa_ < Isa::kAvx512 || !HasBf16()) return false;
    const auto add = isa_ < Isa::kAmx ? cpu::AddGramPairs : cpu::AddGramBf16;
    add(left, right, tokens, width, sum);
    return true;
  }

 private:
  Isa isa_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(Isa isa) : isa_(isa), services_(isa) {}

  std::string Name() const override { return fmt::format("cpu, {}", IsaName(isa_)); }

  LinearId Upload(const PackedLinear& linear) override {
    const auto free = std::find_if(linears_.begin(), linears_.end(), [](const Linear& l) {
      return std::holds_alternative<std::monostate>(l.main);
    });
    const auto slot = free != linears_.end() ? free : linears_.emplace(linears_.end());
    slot->main = Pack(linear.weights, linear.input.activations, linear.bias);
    if (linear.tail.cols > 0) slot->tail = Pack(linear.tail, linear.input.tail_activations, {});
    return static_cast<LinearId>(slot - linears_.begin());
  }

  void Release(LinearId id) override {
    At(id);
    linears_[static_cast<size_t>(id)] = {};
  }

  KernelUse KernelFor(const ProductFormat& product, int64_t tokens) const override {
    return cpu::KernelFor(isa_, product, tokens);
  }

  Activations PrepareActs(const ActsSource& source, int64_t tokens,
                          const InputSpec& spec) override {
    return cpu::PrepareActs(isa_, source, tokens, spec, cpu::TakesTiles(isa_, tokens), acts_);
  }

  void Gemm(const Activations& acts, LinearId id, float* y, int64_t y_stride,
            bool accumulate) override {
    if (acts.tokens == 0) return;
    const Linear& linear = At(id);
    NIBBLE_CHECK((acts.tail != nullptr) == (linear.tail.index() != 0), "one has a tail");
    Multiply(acts, linear.main, y, y_stride, accumulate);
    if (acts.tail != nullptr) Multiply(*acts.tail, linear.tail, y, y_stride, true);
  }

  const float* Decode(const Activations& acts) override {
    if (acts.tail == nullptr && !acts.format.quantized()) return acts.values;
    const int64_t tail = acts.tail == nullptr ? 0 : acts.tail->width, width = acts.width + tail;
    float* decoded = decoded_.Grow(acts.tokens * width);
    DecodePart(acts, decoded, width);
    if (acts.tail != nullptr) DecodePart(*acts.tail, decoded + acts.width, width);
    return decoded;
  }

  void Project(const Activations& acts, std::span<const Projection> outputs) override {
    for (const Projection& output : outputs) {
      Gemm(acts, output.id, reinterpret_cast<float*>(output.y), Rows(output.id), false);
    }
  }

  bool MultipliesRows() const override { return true; }
  void MultiplyRows(const Activations& acts, std::span<const RowsProduct> products) override {
    NIBBLE_CHECK(acts.tail == nullptr);
    std::vector<cpu::GemvProduct> few;
    chosen_.Clear();
    for (const RowsProduct& product : products) {
      const Activations rows = chosen_.Rows(acts, product.rows);
      const auto* panels = std::get_if<cpu::IntPanels>(&At(product.id).main);
      const cpu::Kernel* kernel =
          panels == nullptr ? nullptr : &cpu::ChooseKernel(isa_, *panels, rows.tokens);
      if (kernel == nullptr || kernel->gemv == nullptr || panels->planes()) {
        Gemm(rows, product.id, product.y, Rows(product.id), false);
      } else {
        few.push_back({rows, panels, kernel, product.y});
      }
    }
    cpu::GemvAll(isa_, few);
  }

  MathServices& services() override { return services_; }

  void RopeAndAppend(Intermediate* q, Intermediate* k, const Intermediate* v,
                     const AttentionSpec& attention, const RopeView& rope, const KvSpec& kv,
                     std::span<const SequenceSlice> batch) override {
    cpu::RopeAndAppend(isa_, reinterpret_cast<float*>(q), reinterpret_cast<float*>(k),
                       reinterpret_cast<const float*>(v), attention, rope, kv, batch);
  }

  void Attention(const Intermediate* q, const AttentionSpec& attention, const KvSpec& kv,
                 std::span<const SequenceSlice> batch, Intermediate* out) override {
    cpu::Attention(isa_, reinterpret_cast<const float*>(q), attention, kv, batch,
                   reinterpret_cast<float*>(out));
  }

 private:
  void Multiply(const Activations& acts, const Weights& weights, float* y, int64_t y_stride,
                bool accumulate) {
    if (const auto* panels = std::get_if<cpu::IntPanels>(&weights)) {
      const cpu::Kernel& kernel = cpu::ChooseKernel(isa_, *panels, acts.tokens);
      const bool split = panels->planes();
      return cpu::GemmInt(
          isa_,
          split ? cpu::SplitPlanes(isa_, acts, cpu::TakesTiles(isa_, 2 * acts.tokens), planes_)
                : acts,
          *panels, kernel, y, y_stride, accumulate);
    }
    const WideLinear& linear = std::get<WideLinear>(weights);
    // Weights that are not quantized have no integer product.
    const float* x = acts.values;
    if (acts.format.quantized()) {
      float* decoded = decoded_.Grow(acts.tokens * acts.width);
      DecodePart(acts, decoded, acts.width);
      x = decoded;
    }
    const float* bias = linear.bias.empty() ? nullptr : linear.bias.data();
    if (const auto* terms = std::get_if<cpu::PanelsBf16>(&linear.weights)) {
      return cpu::GemmBf16(x, acts.tokens, *terms, bias, y, y_stride, accumulate);
    }
    cpu::GemmF32(isa_, x, acts.tokens, std::get<cpu::PanelsF32>(linear.weights), bias, y, y_stride,
                 accumulate);
  }

  // Decodes one part, the main one or the tail, into rows that lie `stride` floats apart.
  static void DecodePart(const Activations& acts, float* out, int64_t stride) {
    const int64_t groups = acts.format.groups(acts.width);
    ParallelFor(static_cast<size_t>(acts.tokens), [&](size_t i) {
      const auto t = static_cast<int64_t>(i);
      const std::span<float> row = {out + t * stride, static_cast<size_t>(acts.width)};
      if (!acts.format.quantized()) {
        std::copy_n(acts.values + t * acts.width, acts.width, row.begin());
        return;
      }
      // DequantizeActivations only reads the codes; ActRow serves the quantizer too.
      const ActRow codes{.codes = const_cast<int8_t*>(acts.codes + t * acts.stride),
                         .scales = const_cast<float*>(acts.scales + t * groups),
                         .zero_offsets = acts.zero_offsets == nullptr
                                             ? nullptr
                                             : const_cast<float*>(acts.zero_offsets + t * groups),
                         .sums = nullptr};
      DequantizeActivations(codes, acts.format, row);
    });
  }

  Weights Pack(const PackedWeights& weights, const FormatSpec& activations,
               const Tensor& bias) const {
    if (weights.format.quantized() && activations.bits <= 16) {
      return cpu::PackPanels(weights, activations, bias);
    }
    WideLinear packed;
    Matrix<float> decoded;
    Tensor values = weights.values;
    if (weights.format.quantized()) {
      decoded = nibble::Decode(weights);
      values = {.dtype = DType::kF32,
                .shape = {decoded.rows, decoded.cols},
                .data = reinterpret_cast<const std::byte*>(decoded.data.data())};
    }
    if (cpu::ValueKernel(isa_).tiles) {
      packed.weights = cpu::PackBf16(values);
    } else {
      packed.weights = cpu::PackF32(values);
    }
    if (bias.data != nullptr) packed.bias = ToF32(bias).data;
    return packed;
  }

  int64_t Rows(LinearId id) const {
    const auto* panels = std::get_if<cpu::IntPanels>(&At(id).main);
    if (panels != nullptr) return panels->rows;
    return std::visit([](const auto& weights) { return weights.rows; },
                      std::get<WideLinear>(At(id).main).weights);
  }

  const Linear& At(LinearId id) const {
    const auto i = static_cast<size_t>(id);
    NIBBLE_CHECK(i < linears_.size() && linears_[i].main.index() != 0, "linear {}", id);
    return linears_[i];
  }

  Isa isa_;
  CpuServices services_;
  std::vector<Linear> linears_;
  cpu::ActsWorkspace acts_;
  ChosenRows chosen_;
  cpu::ActsMemory planes_;
  Buffer<float> decoded_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(Isa isa) {
  return std::make_unique<CpuBackend>(isa);
}

}  // namespace nibble
