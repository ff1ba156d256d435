// SPDX-License-Identifier: Apache-2.0
#include "transforms/hadamard.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string_view>

#include "base/checked.h"
#include "base/target_clones.h"
#include "base/thread_pool.h"
#include "transforms/fourier.h"

namespace nibble {
namespace {

constexpr std::array<std::string_view, kFactorKinds> kKindNames = {
    "sylvester",  "paley1",  "paley2", "stored", "conference",
    "jacobsthal", "hartley", "random", "fourier"};
constexpr int64_t kMaxWidth = int64_t{1} << 30;

// Columns processed together: enough for full vectors on every machine, while the tile of the
// largest usual factor stays in the first cache.
constexpr int64_t kLanes = 16;

// sums[lane] = sum over i of entries[i] * tile[i, lane], in ascending order on every machine. In
// vectors by hand: the compiler keeps neither 16 sums in registers nor their products together.
template <typename T>
[[gnu::always_inline]] inline void AddProducts(std::span<const double> entries, const T* tile,
                                               std::array<T, kLanes>& sums) {
  using Vector [[gnu::vector_size(32), gnu::aligned(alignof(T)), gnu::may_alias]] = T;
  constexpr int64_t kVectors = kLanes * sizeof(T) / sizeof(Vector);
  Vector sum[kVectors] = {};
  for (const double entry : entries) {
    const auto* const values = reinterpret_cast<const Vector*>(tile);
    for (int64_t i = 0; i < kVectors; ++i) sum[i] += static_cast<T>(entry) * values[i];
    tile += kLanes;
  }
  std::memcpy(sums.data(), sum, sizeof(sum));
}
NIBBLE_TARGET_CLONES void SumProducts(std::span<const double> entries, const double* tile,
                                      std::array<double, kLanes>& sums) {
  AddProducts(entries, tile, sums);
}
NIBBLE_TARGET_CLONES void SumProducts(std::span<const double> entries, const float* tile,
                                      std::array<float, kLanes>& sums) {
  AddProducts(entries, tile, sums);
}

// Views x as [?, order, stride] and applies the factor along the middle axis. Columns (pairs of the
// outer and inner index) are gathered into a tile [order, kLanes], so that all strides, 1 included,
// run at the same speed.
template <typename T>
void ApplyDense(const TransformFactor& factor, int64_t stride, std::span<T> x) {
  const std::span<const double> matrix = FactorMatrix(factor);
  const int64_t order = factor.order;
  const int64_t columns = static_cast<int64_t>(x.size()) / order;
  std::vector<T> tile(static_cast<size_t>(order * kLanes));
  for (int64_t first = 0; first < columns; first += kLanes) {
    const int64_t lanes = std::min(kLanes, columns - first);
    std::array<T*, kLanes> column;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t c = first + lane;
      column[lane] = x.data() + c / stride * order * stride + c % stride;
      for (int64_t i = 0; i < order; ++i) tile[i * kLanes + lane] = column[lane][i * stride];
    }
    for (int64_t row = 0; row < order; ++row) {
      std::array<T, kLanes> sum;
      SumProducts(matrix.subspan(static_cast<size_t>(row * order), static_cast<size_t>(order)),
                  tile.data(), sum);
      for (int64_t lane = 0; lane < lanes; ++lane) column[lane][row * stride] = sum[lane];
    }
  }
}

// Applies Sylvester's matrix along the middle axis of the same view of x, in log2(order) rounds of
// sums and differences.
template <typename T>
void ApplySylvester(int64_t order, int64_t stride, std::span<T> x) {
  for (int64_t half = stride; half < order * stride; half *= 2) {
    for (T* low = x.data(); low != x.data() + x.size(); low += 2 * half) {
      for (int64_t j = 0; j < half; ++j) {
        const T a = low[j], b = low[j + half];
        low[j] = a + b;
        low[j + half] = a - b;
      }
    }
  }
}

template <typename T>
void Apply(const TransformSpec& spec, std::span<T> x) {
  NIBBLE_CHECK(static_cast<int64_t>(x.size()) == spec.width(), "{} vs {}", x.size(), spec.width());
  if (spec.identity()) return;
  int64_t stride = spec.order() * spec.inner;
  for (const TransformFactor& factor : spec.factors) {
    stride /= factor.order;
    if (factor.kind == FactorKind::kSylvester) {
      ApplySylvester(factor.order, stride, x);
    } else if (factor.kind == FactorKind::kFourier) {
      ApplyFourier(factor, stride, 1, x);
    } else {
      ApplyDense(factor, stride, x);
    }
  }
  const T scale = static_cast<T>(spec.scale());
  for (T& value : x) value *= scale;
}

// The name of a construction as people read it; all Hadamard matrices share one.
std::string_view NameOf(FactorKind kind) {
  switch (kind) {
    case FactorKind::kConference:
      return "conference";
    case FactorKind::kJacobsthal:
      return "Jacobsthal";
    case FactorKind::kHartley:
      return "Hartley";
    case FactorKind::kRandom:
      return "random";
    case FactorKind::kFourier:
      return "Fourier";
    default:
      return "Hadamard";
  }
}

void RefuseOtherFields(const Json& object, std::initializer_list<std::string_view> known,
                       const std::string& where) {
  if (!object.is_object()) Fail("{} must be a JSON object", where);
  for (const auto& item : object.items()) {
    if (std::ranges::find(known, item.key()) == known.end()) {
      Fail("{}: unknown field \"{}\"; this checkpoint needs a newer version", where, item.key());
    }
  }
}

TransformFactor FactorFromJson(const Json& json, const std::string& where) {
  RefuseOtherFields(json, {"order", "kind", "transposed"}, where);
  const auto name = JsonGet<std::string>(json, "kind", where);
  const auto order = JsonGet<int64_t>(json, "order", where);
  const auto kind = std::ranges::find(kKindNames, name);
  const TransformFactor factor = {order, static_cast<FactorKind>(kind - kKindNames.begin()),
                                  JsonFind<bool>(json, "transposed", where).value_or(false)};
  if (kind == kKindNames.end() || !HasFactor(factor)) {
    Fail("{}: this version has no matrix of order {} and kind \"{}\"", where, order, name);
  }
  return factor;
}

}  // namespace

int64_t TransformSpec::order() const {
  int64_t product = 1;
  for (const TransformFactor& factor : factors) product *= factor.order;
  return product;
}

double TransformSpec::scale() const {
  double squared = 1;
  for (const TransformFactor& factor : factors) {
    squared *= static_cast<double>(SquaredLength(factor));
  }
  return 1 / std::sqrt(squared);
}

double TransformSpec::operations() const {
  int64_t sum = 0;
  for (const TransformFactor& factor : factors) sum += OperationsPerElement(factor);
  return static_cast<double>(sum);
}

TransformSpec Inverse(TransformSpec spec) {
  for (TransformFactor& factor : spec.factors) {
    factor.transposed = factor.kind != FactorKind::kSylvester && !factor.transposed;
  }
  return spec;
}

std::optional<TransformSpec> RandomKronecker(int64_t n) {
  int64_t first = 1;
  for (int64_t order = 1; order * order <= n; ++order) {
    if (n % order == 0) first = order;
  }
  if (n / first > kMaxRandomOrder || n < 2) return std::nullopt;
  TransformSpec spec;
  if (first > 1) spec.factors.push_back({first, FactorKind::kRandom, true});
  spec.factors.push_back({n / first, FactorKind::kRandom});
  return spec;
}

TransformSpec FullHadamard(int64_t n) {
  NIBBLE_CHECK(n > 0, "width {}", n);
  for (int64_t blocks = 1; blocks < n; ++blocks) {
    if (n % blocks != 0) continue;
    std::vector<TransformFactor> factors = FlatFactors(n / blocks);
    if (!factors.empty()) return {.factors = std::move(factors), .outer = blocks};
  }
  return {.outer = n};
}

void ApplyTransform(const TransformSpec& spec, std::span<double> x) {
  Apply(spec, x);
}
void ApplyTransform(const TransformSpec& spec, std::span<float> x) {
  Apply(spec, x);
}

void ApplyTransformToRows(const TransformSpec& spec, Matrix<double>& w) {
  if (spec.identity()) return;
  NIBBLE_CHECK(w.cols == spec.width(), "{} vs {}", w.cols, spec.width());
  constexpr int64_t kRows = 8;  // of a task, so that a few columns of each fill the lanes
  ParallelFor(static_cast<size_t>((w.rows + kRows - 1) / kRows), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * kRows;
    const int64_t rows = std::min(kRows, w.rows - first);
    TransformSpec several = spec;
    several.outer *= rows;
    ApplyTransform(several, {w.row(first).data(), static_cast<size_t>(rows * w.cols)});
  });
}

void ApplyTransformToColumns(const TransformSpec& spec, Matrix<double>& w) {
  if (spec.identity()) return;
  NIBBLE_CHECK(w.rows == spec.width(), "{} vs {}", w.rows, spec.width());
  // The whole matrix is one row [outer, order, inner * cols]; a task takes a strip of its last
  // axis.
  const int64_t order = spec.order();
  const int64_t stride = spec.inner * w.cols;
  const int64_t strips = (stride + kLanes - 1) / kLanes;
  ParallelFor(static_cast<size_t>(spec.outer * strips), [&](size_t task) {
    const int64_t outer = static_cast<int64_t>(task) / strips;
    const int64_t first = static_cast<int64_t>(task) % strips * kLanes;
    const int64_t lanes = std::min(kLanes, stride - first);
    double* const corner = w.data.data() + outer * order * stride + first;
    std::vector<double> strip(static_cast<size_t>(order * lanes));
    for (int64_t i = 0; i < order; ++i) {
      std::copy_n(corner + i * stride, lanes, strip.data() + i * lanes);
    }
    ApplyTransform({.factors = spec.factors, .inner = lanes}, strip);
    for (int64_t i = 0; i < order; ++i) {
      std::copy_n(strip.data() + i * lanes, lanes, corner + i * stride);
    }
  });
}

std::string TransformText(const TransformSpec& spec) {
  if (spec.identity()) return "-";
  std::string text;
  std::string_view name;
  for (const TransformFactor& factor : spec.factors) {
    if (!text.empty()) text += " x ";
    if (NameOf(factor.kind) != name) text += fmt::format("{} ", name = NameOf(factor.kind));
    text += std::to_string(factor.order);
  }
  if (spec.inner > 1) text += fmt::format(" across {}", spec.inner);
  if (spec.outer > 1) text += fmt::format(", {} blocks", spec.outer);
  return text;
}

Json ToJson(const TransformSpec& spec) {
  Json factors = Json::array();
  for (const TransformFactor& factor : spec.factors) {
    factors.push_back(
        {{"order", factor.order}, {"kind", kKindNames[static_cast<size_t>(factor.kind)]}});
    if (factor.transposed) factors.back()["transposed"] = true;
  }
  return {{"factors", factors}, {"outer", spec.outer}, {"inner", spec.inner}};
}

TransformSpec TransformFromJson(const Json& json, const std::string& where) {
  RefuseOtherFields(json, {"factors", "outer", "inner"}, where);
  TransformSpec spec = {.outer = JsonGet<int64_t>(json, "outer", where),
                        .inner = JsonGet<int64_t>(json, "inner", where)};
  std::vector<int64_t> shape = {spec.outer, spec.inner};
  for (const Json& item : JsonGet<std::vector<Json>>(json, "factors", where)) {
    if (!spec.factors.empty() && spec.factors.back().kind == FactorKind::kSylvester) {
      Fail("{}: the Sylvester factor must be the last one", where);
    }
    spec.factors.push_back(FactorFromJson(item, where + ": factors"));
    shape.push_back(spec.factors.back().order);
  }
  const auto width = CheckedBytes(shape, 1);
  if (spec.outer < 1 || spec.inner < 1 || !width || *width > kMaxWidth) {
    Fail("{}: the width {} x {} x the factors is not in 1..2^30", where, spec.outer, spec.inner);
  }
  return spec;
}

}  // namespace nibble
