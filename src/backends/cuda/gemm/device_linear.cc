// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/gemm/device_linear.h"

#include <algorithm>

#include "backends/cuda/gemm/gemm_sm80.h"
#include "backends/cuda/gemm/gemm_sm90.h"
#include "backends/cuda/gemm/weight_order.h"
#include "backends/cuda/launch.h"
#include "base/thread_pool.h"

namespace nibble::cuda {
namespace {

using Kind = DeviceLinear::Kind;

// Weights of one launch for several linears: q, k and v of 8192 inputs and 8 kv heads have 42 MB.
constexpr int64_t kMostJoinedBytes = 42 << 20;

Kind KindOf(const PackedWeights& weights, const FormatSpec& a) {
  const FormatSpec& w = weights.format;
  if (!a.quantized() || !w.quantized()) return Kind::kFloat;
  const int64_t cols = weights.cols;
  return w.scales(cols) == 1 && a.groups(cols) == 1 ? Kind::kTensorCores : Kind::kGroups;
}

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

// Sums of codes, [rows].
std::vector<float> CodeSums(std::span<const int8_t> codes, int64_t rows) {
  std::vector<float> sums;
  const auto stride = codes.size() / static_cast<size_t>(rows);
  for (; !codes.empty(); codes = codes.subspan(stride)) {
    int32_t sum = 0;
    for (const int8_t code : codes.first(stride)) sum += code;
    sums.push_back(static_cast<float>(sum));
  }
  return sums;
}

// Whether kernels take these weights with their second level of scales.
bool KeepsLevels(const FormatSpec& weights, const FormatSpec& activation, int major) {
  return activation.quantized() && major == 9 && weights.group % kBlockInputs == 0;
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

DeviceLinear::DeviceLinear(const PackedWeights& weights, const FormatSpec& activation,
                           const Tensor& bias)
    : kind_(KindOf(weights, activation)),
      weights_(weights.format),
      activation_(activation),
      rows_(weights.rows),
      cols_(weights.cols),
      stride_((cols_ + kBlockInputs - 1) / kBlockInputs * kBlockInputs),
      major_(Device::Current().major) {
  if (weights.format.second_level && !KeepsLevels(weights.format, activation, major_)) {
    *this = DeviceLinear(Widen(weights), activation, bias);
    return;
  }
  if (bias.data != nullptr) bias_ = FloatsToDevice(ToF32(bias).data);
  kind_ == Kind::kFloat ? UploadFloats(weights) : UploadCodes(weights);
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
  scales_ = FloatsToDevice(DecodeScales(w).data);
  if (!weights_.symmetric && !weights_.second_level) {
    const Matrix<int32_t> zeros = DecodeZeros(w);
    zeros_ = FloatsToDevice({zeros.data.begin(), zeros.data.end()});
  }
  if (kind_ == Kind::kGroups) {
    codes_ = BytesToDevice(std::span<const int8_t>(PlainCodes(w, stride_)));
    return;
  }
  if (!activation_.symmetric) {
    const auto codes =
        w.format.second_level ? PlainCodes(Widen(w), stride_) : PlainCodes(w, stride_);
    code_sums_ = FloatsToDevice(CodeSums(codes, rows_));
  }
  const WeightOrder order(w);
  w_kind_ = order.kind;
  std::vector<uint8_t> ordered(static_cast<size_t>(order.bytes()));
  OrderWeights(w, ordered.data());
  codes_ = BytesToDevice(std::span<const uint8_t>(ordered));
}

std::string DeviceLinear::KernelName(int64_t tokens) const {
  if (kind_ == Kind::kFloat) return "gemm_float";
  if (kind_ == Kind::kGroups) return "gemm_grouped";
  const int bits = CodeBits(w_kind_);
  const char* const levels = w_kind_ == WeightKind::kLevels ? "_levels" : "";
  if (decodes(tokens)) return fmt::format("gemm_decode_s{}s8{}", bits, levels);
  if (major_ == 9) return fmt::format("gemm_sm90_s{}s8{}", bits, levels);
  return fmt::format("gemm_sm80_s{}s{}", bits, bits == 4 && activation_.bits <= 4 ? 4 : 8);
}

void DeviceLinear::Multiply(const Activations& acts, const Output& output,
                            cudaStream_t stream) const {
  if (kind_ == Kind::kTensorCores) {
    const GemmArguments a = Arguments(acts, output);
    if (decodes(acts.tokens)) return GemmDecode({&a, 1}, stream);
    return major_ == 8 ? GemmSm80(a, stream) : GemmSm90(a, stream);
  }
  if (kind_ == Kind::kFloat) {
    return GemmFloat({.x = acts.values,
                      .tokens = acts.tokens,
                      .x_stride = cols_,
                      .w = codes_.data(),
                      .w_type = type_,
                      .rows = rows_,
                      .cols = cols_,
                      .bias = bias_.data(),
                      .y = output.y,
                      .y_stride = output.stride,
                      .accumulate = output.accumulate,
                      .y_type = output.type},
                     stream);
  }
  GemmGrouped({.x = acts.codes,
               .x_scales = acts.scales,
               .x_zetas = acts.zetas,
               .tokens = acts.tokens,
               .x_stride = acts.stride,
               .w = reinterpret_cast<const int8_t*>(codes_.data()),
               .w_scales = scales_.data(),
               .w_zeros = zeros_.data(),
               .w_stride = stride_,
               .x_group = activation_.group,
               .w_group = weights_.group,
               .rows = rows_,
               .cols = cols_,
               .bias = bias_.data(),
               .y = output.y,
               .y_stride = output.stride,
               .accumulate = output.accumulate,
               .y_type = output.type},
              stream);
}

void DeviceLinear::MultiplyAll(const Activations& acts,
                               std::span<const DeviceLinear* const> linears,
                               std::span<const Output> outputs, cudaStream_t stream) {
  std::vector<GemmArguments> joined;
  int64_t bytes = 0;  // of their weights
  const auto launch = [&] {
    if (!joined.empty()) GemmDecode(joined, stream);
    joined.clear();
    bytes = 0;
  };
  for (size_t i = 0; i < linears.size(); ++i) {
    const DeviceLinear& linear = *linears[i];
    if (!linear.decodes(acts.tokens)) {
      linear.Multiply(acts, outputs[i], stream);
      continue;
    }
    const GemmArguments a = linear.Arguments(acts, outputs[i]);
    const bool joins = !joined.empty() && joined.size() < kMaxJoined &&
                       bytes + linear.codes_.size() <= kMostJoinedBytes &&
                       CanJoin(joined.front(), a);
    if (!joins) launch();
    joined.push_back(a);
    bytes += linear.codes_.size();
  }
  launch();
}

bool DeviceLinear::CanGate(const DeviceLinear& gate, const DeviceLinear& up, int64_t tokens) {
  const auto plain = [](const DeviceLinear& l) {
    return l.kind_ == Kind::kTensorCores && l.zeros_.data() == nullptr && l.activation_.symmetric &&
           l.bias_.data() == nullptr;
  };
  return gate.major_ == 9 && tokens > 0 && !gate.decodes(tokens) && plain(gate) && plain(up) &&
         gate.w_kind_ == up.w_kind_ && gate.rows_ == up.rows_ && gate.rows_ % 8 == 0;
}

void DeviceLinear::MultiplyGated(const Activations& acts, const DeviceLinear& gate,
                                 const DeviceLinear& up, Intermediate* y, cudaStream_t stream) {
  GemmArguments a = gate.Arguments(acts, {y, kIntermediate, gate.rows_, false});
  a.up_w = up.codes_.data(), a.up_scales = up.scales_.data();
  GemmSm90(a, stream);
}

GemmArguments DeviceLinear::Arguments(const Activations& acts, const Output& output) const {
  return {.x = acts.codes,
          .x_scales = acts.scales,
          .x_zetas = acts.zetas,
          .x_sums = acts.sums,
          .tokens = acts.tokens,
          .x_bits = activation_.bits,
          .stride = acts.stride,
          .w = codes_.data(),
          .w_kind = w_kind_,
          .w_scales = scales_.data(),
          .w_zeros = zeros_.data(),
          .w_sums = code_sums_.data(),
          .bias = bias_.data(),
          .rows = rows_,
          .cols = cols_,
          .y = output.y,
          .y_stride = output.stride,
          .accumulate = output.accumulate,
          .y_type = output.type};
}

}  // namespace nibble::cuda
