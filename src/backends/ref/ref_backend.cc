// SPDX-License-Identifier: Apache-2.0
#include "backends/ref/ref_backend.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "backends/ref/ref_attention.h"
#include "backends/ref/sums.h"
#include "base/thread_pool.h"
#include "formats/quantizer.h"
#include "transforms/blas.h"

namespace nibble {
namespace {

constexpr int64_t kTileOutputs = 256;  // outputs of one task of a product

// Weights [N, K] and how their inputs come: either codes or, where the product is in fp32, W^T.
struct Product {
  FormatSpec weights, activations;
  int64_t rows = 0, cols = 0;  // N, K
  std::vector<float> bias;     // [N] or empty
  Matrix<float> transposed;    // [K, N]

  Matrix<int8_t> codes;       // [N, K]
  Matrix<float> scales;       // [N, weight groups]
  Matrix<int32_t> zeros;      // [N, weight groups]
  int64_t group = 0;          // inputs per exact sum: the smaller of the two groups
  Matrix<int32_t> code_sums;  // [N, K / group]
};

// 0 stands for a whole row of `cols`.
int64_t GroupLength(const FormatSpec& format, int64_t cols) {
  return format.group == 0 ? cols : format.group;
}

void UnpackIntegers(const PackedWeights& w, Product& linear) {
  linear.scales = DecodeScales(w);
  linear.zeros = DecodeZeros(w);
  linear.codes = Matrix<int8_t>(w.rows, w.cols);
  linear.code_sums = Matrix<int32_t>(w.rows, w.cols / linear.group);
  ParallelFor(static_cast<size_t>(w.rows), [&](size_t task) {
    const int64_t n = static_cast<int64_t>(task);
    std::vector<int16_t> codes(static_cast<size_t>(w.cols));
    UnpackRow(w, n, codes);
    for (int64_t k = 0; k < w.cols; ++k) {
      linear.codes.row(n)[k] = static_cast<int8_t>(codes[k]);
      linear.code_sums.row(n)[k / linear.group] += codes[k];
    }
  });
}

Matrix<float> Transposed(const Matrix<float>& m) {
  Matrix<float> result(m.cols, m.rows);
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) result.row(c)[r] = m.row(r)[c];
  }
  return result;
}

// A row of codes, and their sums for each group.
struct CodeRow {
  std::vector<int8_t> codes;
  std::vector<int32_t> sums;

  CodeRow(std::vector<int8_t> row, int64_t group)
      : codes(std::move(row)), sums(codes.size() / static_cast<size_t>(group)) {
    for (size_t k = 0; k < codes.size(); ++k) sums[k / static_cast<size_t>(group)] += codes[k];
  }
};

// A token's input as a product reads it: its codes or, for 16-bit activations, the upper and the
// lower bytes of x / a, a = max |x| / 32639.
struct TokenCodes {
  std::vector<CodeRow> planes;
  std::vector<float> scales;  // one for each group of activations
};

TokenCodes CodesOf(const Activations& acts, int64_t t, int64_t group) {
  const int64_t groups = acts.format.groups(acts.width);
  TokenCodes token;
  if (acts.format.quantized()) {
    const int8_t* codes = acts.codes + t * acts.stride;
    token.planes.emplace_back(std::vector<int8_t>(codes, codes + acts.width), group);
    token.scales.assign(acts.scales + t * groups, acts.scales + (t + 1) * groups);
    return token;
  }
  const std::span<const float> x = {acts.values + t * acts.width, static_cast<size_t>(acts.width)};
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::fabs(value));
  const float scale = std::max(largest * (1.0f / 32639), kMinScale), inverse = 1.0f / scale;
  std::vector<int8_t> upper, lower;
  for (const float value : x) {
    const auto code =
        static_cast<int>(std::clamp(std::nearbyintf(value * inverse), -32639.0f, 32639.0f));
    upper.push_back(static_cast<int8_t>(std::floor((code + 128) / 256.0)));
    lower.push_back(static_cast<int8_t>(code - 256 * upper.back()));
  }
  token.planes.emplace_back(std::move(upper), group);
  token.planes.emplace_back(std::move(lower), group);
  token.scales = {scale};
  return token;
}

// The arithmetic law (docs/numerics.md) for token t and outputs [first, last):
//   y = sum_G a s [D - pi Q + z (P - L pi)]
// or, where several groups of weights share a token's only scale,
//   y = a [sum_G s (D - pi Q) + z sum_G s (P - L pi)]
void MultiplyIntegers(const Product& w, const Activations& acts, int64_t t, int64_t first,
                      int64_t last, float* y) {
  const int64_t groups = w.cols / w.group;
  const int64_t act_length = GroupLength(w.activations, w.cols);
  const int64_t weight_length = GroupLength(w.weights, w.cols);
  const int64_t act_row = t * w.activations.groups(w.cols);
  const TokenCodes token = CodesOf(acts, t, w.group);
  const bool last_scale = groups > 1 && w.activations.groups(w.cols) == 1;
  for (int64_t n = first; n < last; ++n) {
    float sum = 0, centre = 0;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t k = g * w.group;
      const int64_t act = k / act_length, weight = k / weight_length;
      const int32_t zero = w.zeros.row(n)[weight];
      const auto centred = [&](const CodeRow& plane) {
        const auto at = static_cast<size_t>(k), count = static_cast<size_t>(w.group);
        const int32_t dot =
            Dot(std::span(plane.codes).subspan(at, count), w.codes.row(n).subspan(at, count));
        return static_cast<float>(dot - zero * plane.sums[static_cast<size_t>(g)]);
      };
      const float weight_sum =
          static_cast<float>(static_cast<int32_t>(w.code_sums.row(n)[g] - w.group * zero));
      float term = centred(token.planes[0]);
      if (token.planes.size() == 2) term = 256 * term + centred(token.planes[1]);
      float scale = w.scales.row(n)[weight];
      if (last_scale) {
        centre = std::fma(scale, weight_sum, centre);
      } else {
        if (!w.activations.symmetric) term = term + acts.zero_offsets[act_row + act] * weight_sum;
        scale = token.scales[static_cast<size_t>(act)] * scale;
      }
      sum = groups == 1 ? scale * term : std::fma(scale, term, sum);
    }
    if (last_scale) {
      if (!w.activations.symmetric) sum = std::fma(acts.zero_offsets[act_row], centre, sum);
      sum = token.scales[0] * sum;
    }
    y[n - first] = sum;
  }
}

// One fp32 chain over ascending k per output.
void MultiplyFloats(const Product& w, const float* x, int64_t first, int64_t last, float* y) {
  const std::span<float> sums = {y, static_cast<size_t>(last - first)};
  std::ranges::fill(sums, 0.0f);
  for (int64_t k = 0; k < w.cols; ++k) {
    AddScaled(x[k], w.transposed.row(k).subspan(static_cast<size_t>(first), sums.size()), sums);
  }
}

double Opening(const GateSpec& g, double gate) {
  switch (g.opening) {
    case GateSpec::Opening::kSigmoid:
      return 1 / (1 + std::exp(-gate * (g.linear + gate * gate * g.cubic)));
    case GateSpec::Opening::kNormal:
      return std::erfc(-gate / std::numbers::sqrt2) / 2;
    case GateSpec::Opening::kStep:
      return gate > 0 ? 1 : 0;
  }
  NIBBLE_CHECK(false);
}

// Loads row `token` of the source.
void LoadRow(const ActsSource& source, int64_t token, std::span<float> row) {
  const int64_t first = token * static_cast<int64_t>(row.size());
  const bool gated = source.op == ActsSource::Op::kGated;
  const float* rows = source.op == ActsSource::Op::kRmsNorm ? source.x : source.rows();
  const float* x = (gated ? reinterpret_cast<const float*>(source.gate) : rows) + first;
  const float* up = reinterpret_cast<const float*>(source.up) + first;
  double squares = 0;
  for (size_t i = 0; i < row.size(); ++i) squares += double{x[i]} * x[i];
  const double mean = squares / static_cast<double>(row.size());
  const float factor = static_cast<float>(1 / std::sqrt(mean + double{source.norm_eps}));
  for (size_t i = 0; i < row.size(); ++i) {
    switch (source.op) {
      case ActsSource::Op::kCopy:
      case ActsSource::Op::kIntermediate:
        row[i] = x[i];
        break;
      case ActsSource::Op::kRmsNorm:
        row[i] = x[i] * factor * (source.norm_weight == nullptr ? 1.0f : source.norm_weight[i]);
        break;
      case ActsSource::Op::kGated: {
        const GateSpec& g = source.gating;
        double gate = x[i], open = up[i];
        if (g.limit > 0) {
          const double limit = g.limit;
          gate = std::min(gate, limit), open = std::clamp(open, -limit, limit);
        }
        open = g.alone ? 1 : open + g.up_offset;
        row[i] = static_cast<float>(gate * Opening(g, gate) * open);
        break;
      }
    }
  }
}

struct Linear {
  Product main;
  std::optional<Product> tail;
};

// Prepared rows of `width` entries and the memory they lie in.
struct Part {
  std::vector<float> values, scales, zero_offsets;
  std::vector<int8_t> codes;
  std::vector<int32_t> sums;
  Activations acts;

  void Resize(int64_t tokens, int64_t width, const FormatSpec& format) {
    const auto rows = static_cast<size_t>(tokens * format.groups(width));
    values.resize(static_cast<size_t>(tokens * width));
    acts = {.tokens = tokens, .width = width, .format = format, .values = values.data()};
    if (!format.quantized()) return;
    acts.stride = (width + 63) / 64 * 64;
    codes.assign(static_cast<size_t>(tokens * acts.stride), 0);
    for (std::vector<float>* plane : {&scales, &zero_offsets}) plane->resize(rows);
    sums.resize(rows);
    acts.codes = codes.data();
    acts.scales = scales.data();
    acts.zero_offsets = format.symmetric ? nullptr : zero_offsets.data();
    acts.sums = sums.data();
  }

  // Stores row t; values then hold what its codes mean, which fp32 products read.
  void Store(int64_t t, std::span<const float> row) {
    const std::span<float> kept = {values.data() + t * acts.width, row.size()};
    std::copy(row.begin(), row.end(), kept.begin());
    if (!acts.format.quantized()) return;
    const int64_t groups = acts.format.groups(acts.width);
    const ActRow out = {codes.data() + t * acts.stride, scales.data() + t * groups,
                        zero_offsets.data() + t * groups, sums.data() + t * groups};
    QuantizeActivations(row, acts.format, out);
    DequantizeActivations(out, acts.format, kept);
  }
};

class RefBackend final : public Backend {
 public:
  explicit RefBackend(RefMode mode) : decoded_(mode == RefMode::kDecoded) { PrepareBlas(); }

  std::string Name() const override { return decoded_ ? "decoded to fp32" : "ref"; }

  LinearId Upload(const PackedLinear& linear) override;
  void Release(LinearId id) override { linears_[id].reset(); }
  KernelUse KernelFor(const ProductFormat&, int64_t) const override {
    return {decoded_ ? "decoded_sgemm" : "ref_gemm", ""};
  }

  Activations PrepareActs(const ActsSource& source, int64_t tokens, const InputSpec& spec) override;
  void Gemm(const Activations& acts, LinearId id, float* y, int64_t y_stride,
            bool accumulate) override;

  const float* Decode(const Activations& acts) override;
  void Project(const Activations& acts, std::span<const Projection> outputs) override {
    for (const Projection& output : outputs) {
      Gemm(acts, output.id, reinterpret_cast<float*>(output.y), linears_[output.id]->main.rows,
           false);
    }
  }

  void RopeAndAppend(Intermediate* q, Intermediate* k, const Intermediate* v,
                     const AttentionSpec& attention, const RopeView& rope, const KvSpec& kv,
                     std::span<const SequenceSlice> batch) override {
    ref::RopeAndAppend(reinterpret_cast<float*>(q), reinterpret_cast<float*>(k),
                       reinterpret_cast<const float*>(v), attention, rope, kv, batch);
  }
  void Attention(const Intermediate* q, const AttentionSpec& attention, const KvSpec& kv,
                 std::span<const SequenceSlice> batch, Intermediate* out) override {
    ref::Attention(reinterpret_cast<const float*>(q), attention, kv, batch, decoded_,
                   reinterpret_cast<float*>(out));
  }

 private:
  Product Unpack(const PackedWeights& w, const FormatSpec& activations) const;
  void Multiply(const Activations& acts, const Product& w, float* y, int64_t y_stride,
                bool accumulate) const;

  const bool decoded_;
  std::vector<std::optional<Linear>> linears_;
  Part main_, tail_;           // of the last PrepareActs
  std::vector<float> joined_;  // by Decode
};

Product RefBackend::Unpack(const PackedWeights& w, const FormatSpec& activations) const {
  if (w.format.second_level) return Unpack(Widen(w), activations);
  Product product;
  product.weights = w.format;
  product.activations = activations;
  product.rows = w.rows;
  product.cols = w.cols;
  if (decoded_ || !w.format.quantized() || activations.bits > 16) {
    product.transposed = Transposed(nibble::Decode(w));
  } else {
    const int64_t a = GroupLength(activations, w.cols), b = GroupLength(w.format, w.cols);
    product.group = std::min(a, b);
    if (std::max(a, b) % product.group != 0) Fail("groups of {} and {} inputs do not nest", a, b);
    UnpackIntegers(w, product);
  }
  return product;
}

LinearId RefBackend::Upload(const PackedLinear& packed) {
  const InputSpec& input = packed.input;
  Linear linear = {.main = Unpack(packed.weights, input.activations), .tail = {}};
  if (packed.bias.data != nullptr) linear.main.bias = ToF32(packed.bias).data;
  if (input.tail_width > 0) linear.tail = Unpack(packed.tail, input.tail_activations);
  linears_.emplace_back(std::move(linear));
  return static_cast<LinearId>(linears_.size()) - 1;
}

// Rounds to 11 significant bits, halves to even (InputSpec::transform_bits).
void RoundToHalfPrecision(std::vector<float>& row) {
  for (float& value : row) {
    int exponent = 0;
    const float share = std::frexp(value, &exponent);  // 0.5 to 1
    value = std::ldexp(std::nearbyint(std::ldexp(share, 11)), exponent - 11);
  }
}

void TransformInput(const InputSpec& spec, std::vector<float>& row) {
  const bool rounded = spec.transform_bits == 16;
  if (rounded) RoundToHalfPrecision(row);
  ApplyTransform(spec.transform, std::span(row));
  if (rounded) RoundToHalfPrecision(row);
}

Activations RefBackend::PrepareActs(const ActsSource& source, int64_t tokens,
                                    const InputSpec& spec) {
  const auto width = static_cast<size_t>(spec.width);
  const auto main_width = static_cast<size_t>(spec.main_width());
  main_.Resize(tokens, spec.main_width(), spec.activations);
  tail_.Resize(tokens, spec.tail_width, spec.tail_activations);
  ParallelFor(static_cast<size_t>(tokens), [&](size_t task) {
    const int64_t t = static_cast<int64_t>(task);
    std::vector<float> row(width);
    LoadRow(source, t, row);
    for (size_t i = 0; i < spec.scales.size(); ++i) row[i] *= spec.scales[i];
    if (!spec.transform.identity()) TransformInput(spec, row);
    if (!spec.gather.empty()) {
      const std::vector<float> from = row;
      for (size_t i = 0; i < width; ++i) row[i] = from[static_cast<size_t>(spec.gather[i])];
    }
    main_.Store(t, std::span(row).first(main_width));
    if (spec.tail_width > 0) tail_.Store(t, std::span(row).subspan(main_width));
  });
  Activations acts = main_.acts;
  if (spec.tail_width > 0) acts.tail = &tail_.acts;
  return acts;
}

const float* RefBackend::Decode(const Activations& acts) {
  if (acts.tail == nullptr) return acts.values;
  joined_.clear();
  for (int64_t t = 0; t < acts.tokens; ++t) {
    for (const Activations* part : {&acts, acts.tail}) {
      const float* row = part->values + t * part->width;
      joined_.insert(joined_.end(), row, row + part->width);
    }
  }
  return joined_.data();
}

void RefBackend::Gemm(const Activations& acts, LinearId id, float* y, int64_t y_stride,
                      bool accumulate) {
  const Linear& linear = *linears_[id];
  NIBBLE_CHECK((acts.tail != nullptr) == linear.tail.has_value(), "one has a tail");
  Multiply(acts, linear.main, y, y_stride, accumulate);
  if (linear.tail) Multiply(*acts.tail, *linear.tail, y, y_stride, true);
}

void RefBackend::Multiply(const Activations& acts, const Product& w, float* y, int64_t y_stride,
                          bool accumulate) const {
  NIBBLE_CHECK(acts.width == w.cols && acts.format == w.activations,
               "inputs of width {}, weights of width {}", acts.width, w.cols);
  const int64_t tile_tokens = decoded_ ? 128 : 1;
  const int64_t columns = (w.rows + kTileOutputs - 1) / kTileOutputs;
  const int64_t tiles = (acts.tokens + tile_tokens - 1) / tile_tokens * columns;
  ParallelFor(static_cast<size_t>(tiles), [&](size_t task) {
    const int64_t tile = static_cast<int64_t>(task);
    const int64_t t = tile / columns * tile_tokens, first = tile % columns * kTileOutputs;
    const int64_t tokens = std::min(tile_tokens, acts.tokens - t);
    const int64_t last = std::min(first + kTileOutputs, w.rows);
    Matrix<float> product(tokens, last - first);
    float* out = product.data.data();
    if (decoded_) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, tokens, last - first, w.cols, 1,
                  acts.values + t * w.cols, w.cols, w.transposed.data.data() + first, w.rows, 0,
                  out, last - first);
    } else if (w.codes.rows != 0) {
      MultiplyIntegers(w, acts, t, first, last, out);
    } else {
      MultiplyFloats(w, acts.values + t * w.cols, first, last, out);
    }
    for (int64_t r = 0; r < tokens; ++r) {
      for (int64_t n = first; n < last; ++n) {
        float value = product.row(r)[n - first];
        if (!w.bias.empty()) value = value + w.bias[n];
        float& target = y[(t + r) * y_stride + n];
        target = accumulate ? target + value : value;
      }
    }
  });
}

}  // namespace

std::unique_ptr<Backend> MakeRefBackend(RefMode mode) {
  return std::make_unique<RefBackend>(mode);
}

}  // namespace nibble
