// SPDX-License-Identifier: Apache-2.0
#include "quantize/map/rotate.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "models/families/family.h"
#include "tensor/finite.h"
#include "transforms/blas.h"

namespace nibble {
namespace {

using Signs = std::vector<int8_t>;

void ForEachRow(Matrix<double>& w, auto&& work) {
  ParallelFor(static_cast<size_t>(w.rows),
              [&](size_t n) { work(n, w.row(static_cast<int64_t>(n))); });
}

template <typename Factor>
void ScaleRows(Matrix<double>& w, const std::vector<Factor>& factors) {
  ForEachRow(w, [&](size_t n, std::span<double> row) {
    for (double& value : row) value *= factors[n];
  });
}

template <typename Factor>
void ScaleColumns(Matrix<double>& w, const std::vector<Factor>& factors) {
  ForEachRow(w, [&](size_t, std::span<double> row) {
    for (size_t k = 0; k < row.size(); ++k) row[k] *= factors[k];
  });
}

// A bias is a weight matrix with one column.
void ApplyToBias(std::vector<double>& bias, auto&& map) {
  if (bias.empty()) return;
  Matrix<double> column(static_cast<int64_t>(bias.size()), 1);
  column.data = bias;
  map(column);
  bias = column.data;
}

// Signs of one period repeated for every head: head h uses those of key head h / queries_per_key.
Signs RepeatForHeads(const Signs& signs, int64_t kv_heads, int64_t heads) {
  const size_t d = signs.size() / static_cast<size_t>(kv_heads);
  Signs result;
  for (int64_t h = 0; h < heads; ++h) {
    const auto begin = signs.begin() + static_cast<int64_t>(d) * (h / (heads / kv_heads));
    result.insert(result.end(), begin, begin + static_cast<int64_t>(d));
  }
  return result;
}

// Turns the mean that keys are stored without, [kv_heads, head_dim], by the keys' signs and the
// cache's rotation.
void TurnCenter(const KvSpec& kv, const Signs& signs, std::vector<float>& center) {
  const auto d = static_cast<size_t>(kv.head_dim);
  for (size_t n = 0; n < center.size(); ++n) center[n] *= signs[n];
  for (size_t n = 0; n < center.size() && !kv.rotation.identity(); n += d) {
    ApplyTransform(kv.rotation, std::span(center).subspan(n, d));
  }
}

// Signs that commute with RoPE: equal on dimensions i and i + turned / 2 of a head, whose others
// are free.
Signs RopeSigns(Rng& rng, int64_t kv_heads, int64_t head_dim, int64_t turned) {
  Signs signs;
  for (int64_t g = 0; g < kv_heads; ++g) {
    const Signs half = rng.Signs(static_cast<size_t>(turned / 2));
    signs.insert(signs.end(), half.begin(), half.end());
    signs.insert(signs.end(), half.begin(), half.end());
    const Signs others = rng.Signs(static_cast<size_t>(head_dim - turned));
    signs.insert(signs.end(), others.begin(), others.end());
  }
  return signs;
}

// Each head gets the same transform.
TransformSpec PerHead(Rotation rotation, int64_t heads, int64_t head_dim) {
  TransformSpec spec = FullHadamard(head_dim);
  if (rotation == Rotation::kKronecker) spec = {.factors = {{head_dim, FactorKind::kRandom}}};
  spec.outer *= heads;
  return spec;
}

Matrix<double> LoadWeights(const PackedLinear& linear, const std::string& tensor) {
  if (linear.weights.format.quantized()) return ToF64(InFloats(linear).weights.values);
  RequireFinite(linear.weights.values, tensor);
  return ToF64(linear.weights.values);
}

}  // namespace

std::vector<double> ForQueries(const HeadShape& shape, std::span<const double> scales) {
  const auto d = static_cast<size_t>(shape.head_dim);
  const auto queries = static_cast<size_t>(shape.heads / shape.kv_heads);
  std::vector<double> repeated;
  for (size_t n = 0; n < scales.size() * queries; ++n) {
    repeated.push_back(scales[n / d / queries * d + n % d]);
  }
  return repeated;
}

Plan SourcePlan(Plan plan) {
  for (auto& [name, linear] : plan.linears) {
    linear.LeaveOutTransform();
    linear.output_transform = {};
  }
  plan.kv_rotation = {};
  plan.center_keys = false;
  plan.norms_folded = false;
  return plan;
}

Rotator::Rotator(const Network& source, const Recipe& recipe, const Plan& plan, uint64_t seed)
    : source_(source),
      plan_(plan),
      rotation_(recipe.rotation),
      keep_codes_(recipe.rounding == Rounding::kStored),
      seed_(seed) {
  if (!plan.norms_folded) return;
  Rng rng(seed, 0);
  const int64_t hidden = source.config.hidden_size;
  residual_.emplace();
  if (recipe.rotation == Rotation::kRandom) {
    residual_->dense = RandomOrthogonal(hidden, rng);
  } else {
    residual_->hadamard = TransformOf(recipe.rotation, hidden);
    residual_->signs = rng.Signs(static_cast<size_t>(hidden));
  }
}

Rotator::Rotator(const Rotator& like, const Plan& plan)
    : source_(like.source_),
      plan_(plan),
      rotation_(like.rotation_),
      keep_codes_(like.keep_codes_),
      seed_(like.seed_),
      residual_(like.residual_),
      scales_(like.scales_) {}

void Rotator::Follow(const Matrix<double>& rotation) {
  const int64_t n = rotation.rows;
  Matrix<double> first = IdentityMatrix(n), both(n, n);
  residual_->ApplyToColumns(first);
  Multiply(rotation, first, false, both);
  residual_->dense = std::move(both);
}

int LayerPasses(const Recipe& recipe) {
  return 1 + recipe.maps() + recipe.searches_clips() + (recipe.loss_groups > 0) +
         recipe.learned_scales;
}

FloatLayers KeepLayers(FloatLayers make, int passes, double bytes) {
  struct Kept {
    FloatLayer layer;
    int passes;  // to come
  };
  const auto kept = std::make_shared<std::map<int64_t, Kept>>();
  return [=](int64_t index) mutable {
    if (const auto it = kept->find(index); it != kept->end()) {
      if (--it->second.passes > 0) return it->second.layer;
      return std::move(kept->extract(it).mapped().layer);
    }
    FloatLayer layer = make(index);
    for (const auto& [role, w] : layer.weights) {
      bytes -= static_cast<double>(w.data.size() * sizeof(double));
    }
    if (passes > 1 && bytes >= 0) kept->emplace(index, Kept{layer, passes - 1});
    return layer;
  };
}

FloatLayer Rotator::Layer(int64_t index) const {
  const Family& family = FamilyOf(source_.config_json, source_.directory);
  const LayerWeights& weights = source_.layers[static_cast<size_t>(index)];
  FloatLayer layer;
  for (Role role : source_.config.layer_roles(index)) {
    const std::string tensor =
        source_.directory + ": " + family.linear(source_.config, index, role);
    layer[role] = LoadWeights(weights[role], tensor + ".weight");
    if (keep_codes_ && weights[role].weights.format.quantized()) {
      layer.codes[role] = weights[role].weights;
      layer.gathers[role] = weights[role].input.gather;
    }
    if (weights[role].bias.data == nullptr) continue;
    layer.biases[role] = ToF64(weights[role].bias).data;
  }
  layer.half = half();
  for (const auto& [norm, weight] : weights.vectors) {
    if (!plan_.norms_folded || !IsFoldable(norm)) layer.vectors[norm] = ToF32(weight).data;
  }
  if (!scales_.empty()) {
    ScaleChannels(source_.config, index, scales_[static_cast<size_t>(index)], layer);
    ScaleKeys(layer, index), CenterKeys(layer, index);
  }
  if (rotation_ != Rotation::kNone) RotateLayer(layer, index);
  if (source_.store) source_.store->DropPages();
  return layer;
}

namespace {

void ScaleNorms(const ModelConfig& config, int64_t index, const ByVector<std::vector<double>>& all,
                FloatLayer& layer) {
  for (const auto& [norm, scales] : all) {
    if (scales.empty()) continue;
    for (Role role : config.layer_roles(index)) {
      if (config.NormInFront(role) == norm) ScaleColumns(layer[role], scales);
    }
    std::vector<float>& weight = layer.vectors[norm];
    for (size_t k = 0; k < scales.size(); ++k) {
      weight[k] = static_cast<float>(weight[k] / scales[k]);
    }
  }
}

void ScaleOutputs(const ModelConfig& config, int64_t index, const ByRole<std::vector<double>>& all,
                  FloatLayer& layer) {
  for (const auto& [made, scales] : all) {
    std::vector<double> divided;
    for (const double scale : scales) divided.push_back(1 / scale);
    ScaleRows(layer[made], divided);
    ApplyToBias(layer.biases[made], [&](Matrix<double>& bias) { ScaleRows(bias, divided); });
    if (made == Role::kV) {
      ScaleColumns(layer[Role::kO], ForQueries(config.head_shape(index), scales));
    } else {
      ScaleColumns(layer[OfExpert(Role::kDown, ExpertOf(made))], scales);
    }
  }
}

}  // namespace

void ScaleChannels(const ModelConfig& config, int64_t index, const ChannelScales& scales,
                   FloatLayer& layer) {
  ScaleNorms(config, index, scales.norms, layer);
  ScaleOutputs(config, index, scales.outputs, layer);
}

void Rotator::ScaleKeys(FloatLayer& layer, int64_t index) const {
  const std::vector<double>& scales = scales_[static_cast<size_t>(index)].keys;
  if (scales.empty()) return;
  const HeadShape shape = source_.config.head_shape(index);
  const std::vector<double> of_queries = ForQueries(shape, scales);
  if (source_.config.has(LayerVector::kKeyNorm)) {  // whose weights are behind it, of heads or all
    std::vector<float>& k = layer.vectors[LayerVector::kKeyNorm];
    std::vector<float>& q = layer.vectors[LayerVector::kQueryNorm];
    for (size_t n = 0; n < k.size(); ++n) k[n] = static_cast<float>(k[n] / scales[n]);
    for (size_t n = 0; n < q.size(); ++n) q[n] = static_cast<float>(q[n] * of_queries[n]);
    return;
  }
  std::vector<double> divided;
  for (const double scale : scales) divided.push_back(1 / scale);
  const auto scale_rows = [&](Role role, const std::vector<double>& factors) {
    ScaleRows(layer[role], factors);
    ApplyToBias(layer.biases[role], [&](Matrix<double>& bias) { ScaleRows(bias, factors); });
  };
  scale_rows(Role::kK, divided), scale_rows(Role::kQ, of_queries);
}

void Rotator::CenterKeys(FloatLayer& layer, int64_t index) const {
  const auto& [norms, scales, outputs, mean] = scales_[static_cast<size_t>(index)];
  if (mean.empty()) return;
  std::vector<float>& center = layer.vectors[LayerVector::kKeyCenter];
  for (size_t n = 0; n < mean.size(); ++n) {
    center.push_back(static_cast<float>(scales.empty() ? mean[n] : mean[n] / scales[n]));
  }
}

void Rotator::RotateLayer(FloatLayer& layer, int64_t index) const {
  const ModelConfig& c = source_.config;
  const LayerWeights& weights = source_.layers[static_cast<size_t>(index)];
  // Layers that read another's keys and values draw their signs from that layer's seed.
  const LayerSpec spec = c.spec(index);
  Rng rng(seed_, static_cast<uint64_t>(spec.owns_kv() ? index : spec.kv_layer) + 1);
  const int64_t turned = spec.rope < 0 ? 0 : c.ropes[static_cast<size_t>(spec.rope)].head_dim;
  const auto [heads, kv_heads, head_dim] = c.head_shape(index);
  const Signs k_signs = RopeSigns(rng, kv_heads, head_dim, turned);
  const Signs v_signs = rng.Signs(static_cast<size_t>(kv_heads * head_dim));
  const Signs q_signs = RepeatForHeads(k_signs, kv_heads, heads);
  if (!spec.owns_kv()) rng = Rng(seed_, static_cast<uint64_t>(index) + 1);

  // Maps of a linear's outputs, applied to its weights and to its bias.
  const auto map_outputs = [&](Role role, auto&& map) {
    map(layer[role]);
    ApplyToBias(layer.biases[role], map);
  };
  for (Role role : c.layer_roles(index)) {
    const Role kind = KindOf(role);
    if (kind == Role::kO || kind == Role::kDown) {
      if (residual_) {
        map_outputs(role, [&](Matrix<double>& w) { residual_->ApplyToColumns(w); });
      }
      continue;
    }
    if (FixedPlan(role) == &kLayerInputPlan) continue;  // the residual stream stays as it is
    if (residual_) {
      if (const auto norm = c.NormInFront(role)) {
        ScaleColumns(layer[role], ToF64(weights.vectors[*norm]).data);
      }
      residual_->ApplyToRows(layer[role]);
    } else {
      ApplyTransformToRows(plan_.at(index, role).input_transform, layer[role]);
    }
  }
  map_outputs(Role::kQ, [&](Matrix<double>& w) { ScaleRows(w, q_signs); });
  if (spec.owns_kv()) {
    map_outputs(Role::kK, [&](Matrix<double>& w) { ScaleRows(w, k_signs); });
    if (layer.vectors.contains(LayerVector::kKeyCenter)) {
      TurnCenter(LayerCache(c, plan_, index), k_signs, layer.vectors[LayerVector::kKeyCenter]);
    }
    map_outputs(Role::kV, [&, heads = kv_heads, dim = head_dim](Matrix<double>& w) {
      ScaleRows(w, v_signs);
      ApplyTransformToColumns(PerHead(rotation_, heads, dim), w);
    });
  }
  // Inverse of an orthogonal map on the input side: W M^-1 = W M^T, the same routine as x -> M x.
  ScaleColumns(layer[Role::kO], RepeatForHeads(v_signs, kv_heads, heads));
  ApplyTransformToRows(PerHead(rotation_, heads, head_dim), layer[Role::kO]);
  ApplyTransformToRows(plan_.at(index, Role::kO).input_transform, layer[Role::kO]);
  for (Role down : c.layer_roles(index)) {
    if (KindOf(down) != Role::kDown) continue;
    const Signs signs = rng.Signs(static_cast<size_t>(c.inputs(index, down)));
    if (c.gating.linear_in_up()) {
      map_outputs(OfExpert(Role::kUp, ExpertOf(down)),
                  [&](Matrix<double>& w) { ScaleRows(w, signs); });
      ScaleColumns(layer[down], signs);
    }
    ApplyTransformToRows(plan_.at(index, down).input_transform, layer[down]);
  }
  for (Role role : c.layer_roles(index)) {
    const TransformSpec& online = plan_.at(index, role).output_transform;
    if (online.identity()) continue;
    map_outputs(role, [&](Matrix<double>& w) { ApplyTransformToColumns(Inverse(online), w); });
  }
}

namespace {

Matrix<float> Narrowed(const Matrix<double>& w) {
  Matrix<float> result(w.rows, w.cols);
  for (size_t i = 0; i < w.data.size(); ++i) result.data[i] = static_cast<float>(w.data[i]);
  return result;
}

}  // namespace

Matrix<double> Rotator::ExactRows(Role role, int64_t first, int64_t count) const {
  if (role == Role::kLayerTable) return ToF64(source_.layer_table.values.Rows(first, count));
  const PackedWeights& table = role == Role::kHead              ? source_.head.weights
                               : role == Role::kLayerProjection ? source_.layer_projection.weights
                                                                : source_.embedding;
  const Tensor rows = table.values.Rows(first, count);
  RequireFinite(rows, source_.directory + ": " + RoleName(role));
  return RotatedRows(role, ToF64(rows));
}

Matrix<float> Rotator::TableRows(Role role, int64_t first, int64_t count) const {
  return Narrowed(ExactRows(role, first, count));
}

Matrix<double> Rotator::Turn(Matrix<double> x) const {
  if (residual_) residual_->ApplyToRows(x);
  return x;
}

Matrix<double> Rotator::RotatedRows(Role role, Matrix<double> rows) const {
  if (residual_ && role == Role::kHead) ScaleColumns(rows, ToF64(source_.final_norm).data);
  rows = Turn(std::move(rows));
  if (source_.store) source_.store->DropPages();
  return rows;
}

Matrix<float> Rotator::Table(Role role) const {
  constexpr int64_t kBlock = 4096;  // in fp64 all of it takes twice what is kept
  const ModelConfig& c = source_.config;
  Matrix<float> table(c.vocab_size, c.hidden_size);
  for (int64_t first = 0; first < table.rows; first += kBlock) {
    const int64_t count = std::min(kBlock, table.rows - first);
    std::ranges::copy(TableRows(role, first, count).data, table.row(first).begin());
  }
  return table;
}

std::vector<float> Rotator::FinalNorm() const {
  return plan_.norms_folded ? std::vector<float>() : ToF32(source_.final_norm).data;
}

EmbeddingRows Rotator::embedding() const {
  const auto rows_of = [this](std::span<const int32_t> ids) {
    Matrix<double> rows(static_cast<int64_t>(ids.size()), source_.config.hidden_size);
    ForEachRow(rows, [&](size_t t, std::span<double> row) {
      std::ranges::copy(ToF64(source_.embedding.values.Rows(ids[t], 1)).data, row.begin());
      if (source_.positions.data == nullptr) return;
      const Matrix<float> place = ToF32(source_.positions.Rows(static_cast<int64_t>(t), 1));
      for (size_t k = 0; k < row.size(); ++k) row[k] += place.data[k];
    });
    Matrix<float> rotated = Narrowed(RotatedRows(Role::kEmbedding, std::move(rows)));
    const auto scale = static_cast<float>(source_.config.embedding_scale);
    for (float& value : rotated.data) value *= scale;
    return rotated;
  };
  return {rows_of, source_.config.layer_input_size > 0 ? &source_ : nullptr};
}

Matrix<double> Rotator::Positions() const {
  if (source_.positions.data == nullptr) return {};
  return RotatedRows(Role::kEmbedding, ToF64(source_.positions));
}

Matrix<double> Rotator::HeadRotation() const {
  Matrix<double> turn = RotatedRows(Role::kHead, IdentityMatrix(source_.config.hidden_size));
  residual_->ApplyToColumns(turn);
  return turn;
}

DType Rotator::half() const {  // an embedding may have become fp32 (Family::layer_norms)
  const bool half = source_.embedding.values.dtype == DType::kF16 ||
                    source_.head.weights.values.dtype == DType::kF16;
  return half ? DType::kF16 : DType::kBf16;
}

}  // namespace nibble
