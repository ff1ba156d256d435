// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/device_linear.h"

#include <algorithm>
#include <numeric>

#include "backends/cuda/gemm/gemm_router.h"
#include "backends/cuda/gemm/weight_order.h"
#include "backends/cuda/runtime/launch.h"
#include "base/thread_pool.h"
#include "formats/lattice_codes.h"

namespace nibble::cuda {
namespace {

// Weights of one launch for several linears: q, k and v of 8192 inputs and 8 kv heads have 42 MB.
constexpr int64_t kMaxJoinedBytes = 42 << 20;

// Codes as bytes [rows, stride], zero from cols on.
std::vector<int8_t> PlainCodes(const PackedWeights& w, int64_t stride) {
  std::vector<int8_t> bytes(static_cast<size_t>(w.rows * stride));
  ParallelFor(static_cast<size_t>(w.rows), [&](size_t task) {
    const auto n = static_cast<int64_t>(task);
    std::vector<int16_t> codes(static_cast<size_t>(w.cols));
    UnpackRow(w, n, codes);
    std::copy(codes.begin(), codes.end(), bytes.begin() + n * stride);
  });
  return bytes;
}

// For each row, the sum of its codes or, with groups, of its weights.
std::vector<float> RowSums(const PackedWeights& w) {
  std::vector<float> sums(static_cast<size_t>(w.rows));
  const bool groups = w.format.scales(w.cols) != 1;
  ParallelFor(sums.size(), [&](size_t n) {
    std::vector<int16_t> codes(static_cast<size_t>(w.cols));
    std::vector<float> values(groups ? codes.size() : 0);
    groups ? DecodeRow(w, static_cast<int64_t>(n), values)
           : UnpackRow(w, static_cast<int64_t>(n), codes);
    sums[n] = static_cast<float>(groups ? std::accumulate(values.begin(), values.end(), 0.0)
                                        : std::accumulate(codes.begin(), codes.end(), 0));
  });
  return sums;
}

template <typename T>
Buffer<uint8_t> BytesToDevice(std::span<const T> values) {
  return ToDevice(std::span(reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()));
}

Buffer<float> FloatsToDevice(const std::vector<float>& values) {
  return ToDevice(std::span<const float>(values));
}

}  // namespace

WeightType WeightTypeOf(DType dtype) {
  NIBBLE_CHECK(dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16, "{}",
               DTypeName(dtype));
  return dtype == DType::kF32    ? WeightType::kFloat32
         : dtype == DType::kBf16 ? WeightType::kBfloat16
                                 : WeightType::kFloat16;
}

DeviceLinear::DeviceLinear(const PackedWeights& weights, const FormatSpec& activations,
                           const Tensor& bias, Buffer<LatticeWords>& words, bool with_tail)
    : capability_(Device::Current().major),
      kind_(KindOf(capability_, {weights.format, activations, weights.cols, with_tail})),
      piece_(PieceOf({weights.format, activations, weights.cols})),
      weights_(weights.format),
      activations_(activations),
      rows_(weights.rows),
      cols_(weights.cols),
      stride_((cols_ + kBlockInputs - 1) / kBlockInputs * kBlockInputs) {
  const bool codes = !OfFloats(kind_);
  if (codes && weights.format.second_level && kind_ != WeightKind::kLevels) {
    *this = DeviceLinear(Widen(weights), activations, bias, words, with_tail);
    return;
  }
  if (bias.data != nullptr) bias_ = FloatsToDevice(ToF32(bias).data);
  if (CodewordBits(kind_) != 0) {
    if (words.data() == nullptr) words = ToDevice(std::span(&LatticeCode::Words(), 1));
    words_ = words.data();
  }
  codes ? UploadCodes(weights) : UploadFloats(weights);
}

void DeviceLinear::UploadFloats(const PackedWeights& w) {
  const DType dtype = w.format.quantized() ? DType::kF64 : w.values.dtype;
  if (dtype == DType::kBf16 || dtype == DType::kF16) {
    type_ = WeightTypeOf(dtype);
    codes_ = BytesToDevice(std::span(w.values.data, w.values.bytes()));
    return;
  }
  const Matrix<float> values = w.format.quantized() ? Decode(w) : ToF32(w.values);
  codes_ = BytesToDevice(std::span<const float>(values.data));
}

void DeviceLinear::UploadCodes(const PackedWeights& w) {
  const WeightOrder order(w, kind_, piece_);
  block_ = order.scales;
  if (block_.pieces == 0 || kind_ == WeightKind::kLevels) {
    scales_ = FloatsToDevice(DecodeScales(w).data);
  }
  if (!weights_.symmetric && !weights_.second_level && !block_.zeros) {
    const Matrix<int32_t> zeros = DecodeZeros(w);
    zeros_ = FloatsToDevice({zeros.data.begin(), zeros.data.end()});
  }
  if (kind_ == WeightKind::kPlain) {
    codes_ = BytesToDevice(std::span<const int8_t>(PlainCodes(w, stride_)));
    return;
  }
  if (!activations_.symmetric && activations_.groups(cols_) == 1) {
    code_sums_ = FloatsToDevice(RowSums(w.format.second_level ? Widen(w) : w));
  }
  std::vector<uint8_t> ordered(static_cast<size_t>(order.bytes()));
  OrderWeights(w, order, ordered.data());
  codes_ = BytesToDevice(std::span<const uint8_t>(ordered));
}

void DeviceLinear::Multiply(const Activations& acts, const Output& output,
                            cudaStream_t stream) const {
  const GemmArguments a = Arguments(acts, output);
  KernelFor(acts.tokens).run({&a, 1}, stream);
}

bool DeviceLinear::AddsTail(const DeviceLinear& tail, const Activations& acts) const {
  if (capability_ != 9 || acts.tokens < kMinTailTokens || activations_.bits > 8) return false;
  if (kind_ == WeightKind::kNibbles || kind_ == WeightKind::kBytes) {
    return tail.kind_ == WeightKind::kHalves && tail.type_ != WeightType::kFloat32;
  }
  const bool groups = kind_ == WeightKind::kNibbleGroups && piece_ == kBlockInputs &&
                      activations_.groups(cols_) != 1 && activations_.symmetric &&
                      block_ == BlockScales{.pieces = 1};
  return groups && tail.kind_ == WeightKind::kBytes && tail.activations_.bits <= 8 &&
         tail.activations_.symmetric && tail.zeros_.data() == nullptr;
}

void DeviceLinear::MultiplyAll(const Activations& acts, std::span<const Product> products,
                               cudaStream_t stream) {
  std::vector<GemmArguments> joined;
  const Kernel* kernel = nullptr;  // of `joined`
  int64_t bytes = 0;               // of the weights of `joined`
  const auto launch = [&] {
    if (!joined.empty()) kernel->run(joined, stream);
    joined.clear();
    bytes = 0;
  };
  for (const auto& [linear, tail, output] : products) {
    const Kernel& next = tail != nullptr ? kTailKernel : linear->KernelFor(acts.tokens);
    const GemmArguments a = linear->Arguments(acts, output, tail);
    const bool joins = kernel == &next && joined.size() < next.joins &&
                       bytes + linear->codes_.size() <= kMaxJoinedBytes && !joined.empty() &&
                       CanJoin(joined.front(), a);
    if (!joins) launch();
    kernel = &next;
    joined.push_back(a);
    bytes += linear->codes_.size();
  }
  launch();
}

bool DeviceLinear::CanGate(const DeviceLinear& gate, const DeviceLinear& up, const GateSpec& gating,
                           int64_t tokens) {
  const auto plain = [](const DeviceLinear& l) {
    return l.zeros_.data() == nullptr && l.activations_.symmetric && l.bias_.data() == nullptr;
  };
  return gating.opening == GateSpec::Opening::kSigmoid && tokens > 0 &&
         gate.KernelFor(tokens).gates && plain(gate) && plain(up) && gate.kind_ == up.kind_ &&
         gate.rows_ == up.rows_ && gate.rows_ % 8 == 0;
}

void DeviceLinear::MultiplyGated(const Activations& acts, const DeviceLinear& gate,
                                 const DeviceLinear& up, const GateSpec& gating, Intermediate* y,
                                 cudaStream_t stream) {
  GemmArguments a = gate.Arguments(acts, {y, kIntermediate, gate.rows_, false});
  a.up_w = up.codes_.data(), a.up_scales = up.scales_.data(), a.gating = gating;
  gate.KernelFor(acts.tokens).run({&a, 1}, stream);
}

bool DeviceLinear::MultiplyNormed(const ActsSource& source, int64_t tokens, float* y,
                                  cudaStream_t stream) const {
  if (kind_ != WeightKind::kFloats || cols_ % 4 != 0) return false;
  RouterLogits({.x = source.x,
                .norm = source.norm_weight,
                .eps = source.norm_eps,
                .tokens = tokens,
                .experts = rows_,
                .cols = cols_,
                .w = codes_.data(),
                .w_type = type_,
                .bias = bias_.data(),
                .logits = y},
               stream);
  return true;
}

bool DeviceLinear::AreExperts(std::span<const DeviceLinear* const> linears) {
  const DeviceLinear& first = *linears.front();
  // Experts need inputs of at most 8 bits with one scale a row: planes of 16 bits take turns every
  // eight rows, and rows with groups could not find their scales.
  const bool rows = first.activations_.bits <= 8 && first.activations_.groups(first.cols_) == 1;
  return rows && first.KernelFor(1).run_experts != nullptr &&
         std::ranges::all_of(linears, [&](const DeviceLinear* linear) {
           const auto alike = [&](auto DeviceLinear::*plane) {
             return ((linear->*plane).data() == nullptr) == ((first.*plane).data() == nullptr);
           };
           return linear->kind_ == first.kind_ && linear->weights_ == first.weights_ &&
                  linear->rows_ == first.rows_ && linear->cols_ == first.cols_ &&
                  alike(&DeviceLinear::zeros_) && alike(&DeviceLinear::bias_);
         });
}

Buffer<LinearTerms> DeviceLinear::ExpertTerms(std::span<const DeviceLinear* const> linears,
                                              std::span<const DeviceLinear* const> ups) {
  std::vector<LinearTerms> terms;
  for (size_t e = 0; e < linears.size(); ++e) {
    const DeviceLinear& l = *linears[e];
    terms.push_back({.w = l.codes_.data(),
                     .scales = l.scales_.data(),
                     .zeros = l.zeros_.data(),
                     .sums = l.code_sums_.data(),
                     .bias = l.bias_.data(),
                     .up_w = ups.empty() ? nullptr : ups[e]->codes_.data(),
                     .up_scales = ups.empty() ? nullptr : ups[e]->scales_.data()});
  }
  return ToDevice(std::span<const LinearTerms>(terms));
}

void DeviceLinear::MultiplyExperts(const Activations& acts, std::span<const Experts> products,
                                   const ExpertGroups& groups, cudaStream_t stream) {
  const Kernel& kernel = products.front().first.KernelFor(groups.max_rows);
  std::vector<GemmArguments> joined;
  for (const Experts& product : products) {
    if (joined.size() == kernel.joins) kernel.run_experts(joined, stream), joined.clear();
    joined.push_back(product.first.Arguments(acts, product.output));
    joined.back().experts = groups;
    joined.back().experts.linears = product.terms;
  }
  kernel.run_experts(joined, stream);
}

void DeviceLinear::MultiplyGatedExperts(const Activations& acts, const Experts& gate,
                                        const DeviceLinear& up, const GateSpec& gating,
                                        const ExpertGroups& groups, cudaStream_t stream) {
  GemmArguments a = gate.first.Arguments(acts, gate.output);
  a.up_w = up.codes_.data(), a.up_scales = up.scales_.data(), a.gating = gating;
  a.experts = groups, a.experts.linears = gate.terms;
  gate.first.KernelFor(groups.max_rows).run_experts({&a, 1}, stream);
}

GemmArguments DeviceLinear::Arguments(const Activations& acts, const Output& output,
                                      const DeviceLinear* tail) const {
  NIBBLE_CHECK(output.addend == nullptr || TakesAddend(acts.tokens), "{} tokens", acts.tokens);
  GemmArguments a = {.x = acts.codes,
                     .values = acts.values,
                     .x_scales = acts.scales,
                     .x_zero_offsets = acts.zero_offsets,
                     .x_sums = acts.sums,
                     .x_pitch = ScalePitch(acts.tokens),
                     .tokens = acts.tokens,
                     .a_bits = activations_.bits,
                     .stride = acts.stride,
                     .w = codes_.data(),
                     .w_kind = kind_,
                     .w_type = type_,
                     .x_group = activations_.groups(cols_) == 1 ? 0 : activations_.group,
                     .w_group = weights_.groups(cols_) == 1 ? 0 : weights_.group,
                     .piece = piece_,
                     .w_block = block_,
                     .words = words_,
                     .w_scales = scales_.data(),
                     .w_zeros = zeros_.data(),
                     .w_sums = code_sums_.data(),
                     .bias = bias_.data(),
                     .rows = rows_,
                     .cols = cols_,
                     .y = output.y,
                     .y_stride = output.stride,
                     .accumulate = output.accumulate,
                     .addend = output.addend,
                     .y_type = output.type};
  if (tail == nullptr) return a;
  const bool pairs = tail->kind_ == WeightKind::kHalves;
  const Activations& last = *acts.tail;
  a.tail = {.x = pairs ? last.tiles : last.codes,
            .stride = pairs ? PairStride(last.width) * int64_t{sizeof(uint16_t)} : last.stride,
            .x_scales = pairs ? nullptr : last.scales,
            .w_type = tail->type_,
            .cols = tail->cols_};
  a.tail_w = tail->codes_.data(), a.tail_scales = tail->scales_.data();
  return a;
}

}  // namespace nibble::cuda
