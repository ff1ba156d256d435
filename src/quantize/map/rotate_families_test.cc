// SPDX-License-Identifier: Apache-2.0
// Folding and rotation leave the logits of every family as they are: in fp64, so that what is left
// is rounding and no wrong factor hides in it.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "models/import/open_network.h"
#include "models/random_model_testing.h"
#include "quantize/map/rotate.h"
#include "quantize/plan/make_plan.h"
#include "tensor/plain_math_testing.h"
#include "transforms/hadamard.h"
#include "transforms/rope.h"

namespace nibble {
namespace {

using Vector = plain::Vector;
using Rows = std::vector<Vector>;  // of tokens

// A network as Rotator gives it, with its online transforms, in plain loops.
class Fp64Network {
 public:
  Fp64Network(const Network& source, const Recipe& recipe)
      : c_(source.config),
        plan_(MakePlan(source, recipe)),
        rotator_(source, recipe, plan_, 3),
        folded_(plan_.norms_folded),
        head_bias_(source.head.bias),
        final_norm_(ToF64(source.final_norm).data) {}

  Rows Logits(const std::vector<int32_t>& ids) const {
    const Matrix<double> embedding = rotator_.ExactRows(Role::kEmbedding, 0, c_.vocab_size);
    const Matrix<double> head = rotator_.ExactRows(Role::kHead, 0, c_.vocab_size);
    const Matrix<double> places = rotator_.Positions();
    Rows x;
    given_.clear();
    for (size_t t = 0; t < ids.size(); ++t) {
      const auto row = embedding.row(ids[t]);
      x.emplace_back(row.begin(), row.end());
      for (double& v : x[t]) v *= c_.embedding_scale;
      given_.push_back(LayerInputs(ids[t], x[t]));
      if (places.rows == 0) continue;
      for (size_t k = 0; k < x[t].size(); ++k) x[t][k] += places.row(static_cast<int64_t>(t))[k];
    }
    for (int64_t layer = 0; layer < c_.layers; ++layer) Layer(layer, x);
    Rows logits;
    for (const Vector& row : x) {
      const Vector h = Normed(row, folded_ ? Vector() : final_norm_);
      Vector& y = logits.emplace_back(plain::Times(head, h));
      if (head_bias_.data != nullptr) plain::Add(ToF64(head_bias_).data, y);
    }
    return logits;
  }

 private:
  Vector Normed(std::span<const double> x, const Vector& weight) const {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double size = std::sqrt(squares / static_cast<double>(x.size()) + c_.norm_eps);
    Vector y;
    for (size_t i = 0; i < x.size(); ++i)
      y.push_back(x[i] / size * (weight.empty() ? 1 : weight[i]));
    return y;
  }
  static Vector Doubles(const FloatLayer& layer, LayerVector vector) {
    return {layer.vectors[vector].begin(), layer.vectors[vector].end()};
  }
  Vector Input(const FloatLayer& layer, Role role, const Vector& x) const {
    const auto norm = c_.NormInFront(role);
    return norm ? Normed(x, Doubles(layer, *norm)) : x;
  }
  // Any inputs will do here, as long as they are made of the embedding.
  Vector LayerInputs(int32_t id, const Vector& x) const {
    if (c_.layer_input_size == 0) return {};
    const int64_t all = c_.layers * c_.layer_input_size;
    Vector y = plain::Times(rotator_.ExactRows(Role::kLayerProjection, 0, all), x);
    plain::Add(rotator_.ExactRows(Role::kLayerTable, id * c_.layers, c_.layers).data, y);
    return y;
  }
  Vector Linear(const FloatLayer& layer, int64_t index, Role role, const Vector& x) const {
    Matrix<double> row(1, static_cast<int64_t>(x.size()));
    row.data = x;
    ApplyTransformToRows(plan_.at(index, role).input_transform, row);
    Vector y = plain::Times(layer[role], row.data);
    plain::Add(layer.biases[role], y);
    Matrix<double> outputs(1, static_cast<int64_t>(y.size()));
    outputs.data = std::move(y);
    ApplyTransformToRows(plan_.at(index, role).output_transform, outputs);
    return outputs.data;
  }
  // Each head by itself, or all of them at once; then their positions.
  void Turn(const FloatLayer& layer, LayerVector norm, int64_t head_dim, const RopeTable* rope,
            int64_t position, Vector& heads) const {
    const Vector weight = Doubles(layer, norm);
    if (!weight.empty() && c_.wide_query_norms) heads = Normed(heads, weight);
    for (int64_t at = 0; at < static_cast<int64_t>(heads.size()); at += head_dim) {
      double* const head = heads.data() + at;
      if (!weight.empty() && !c_.wide_query_norms) {
        const Vector normed = Normed({head, static_cast<size_t>(head_dim)}, weight);
        std::ranges::copy(normed, head);
      }
      for (int64_t i = 0; rope != nullptr && i < rope->cos.cols; ++i) {
        const double cos = rope->cos.row(position)[static_cast<size_t>(i)];
        const double sin = rope->sin.row(position)[static_cast<size_t>(i)];
        const double a = head[i], b = head[i + rope->cos.cols];
        head[i] = a * cos - b * sin, head[i + rope->cos.cols] = b * cos + a * sin;
      }
    }
  }
  Vector Attend(int64_t index, const Vector& sinks, const Rows& q, const Rows& k, const Rows& v,
                size_t query) const {
    const LayerSpec spec = c_.spec(index);
    const HeadShape shape = c_.head_shape(index);
    const double scale = c_.attention_scale > 0
                             ? c_.attention_scale
                             : 1 / std::sqrt(static_cast<double>(shape.head_dim));
    const auto d = static_cast<size_t>(shape.head_dim);
    const auto window = static_cast<size_t>(spec.sliding_window);
    Vector out(q[query].size());
    for (size_t h = 0; h < out.size() / d; ++h) {
      const size_t from = h / static_cast<size_t>(shape.heads / shape.kv_heads) * d;
      double weights = sinks.empty() ? 0 : std::exp(sinks[h]);
      for (size_t key = window > 0 && query + 1 > window ? query + 1 - window : 0; key <= query;
           ++key) {
        double score = 0;
        for (size_t i = 0; i < d; ++i) score += q[query][h * d + i] * k[key][from + i] * scale;
        if (c_.attention_softcap > 0) {
          score = c_.attention_softcap * std::tanh(score / c_.attention_softcap);
        }
        weights += std::exp(score);
        for (size_t i = 0; i < d; ++i) out[h * d + i] += std::exp(score) * v[key][from + i];
      }
      for (size_t i = 0; i < d; ++i) out[h * d + i] /= weights;
    }
    return out;
  }
  double Opened(double gate, double up) const {
    const GateSpec& g = c_.gating;
    if (g.limit > 0) {
      gate = std::min<double>(gate, g.limit), up = std::clamp<double>(up, -g.limit, g.limit);
    }
    up = g.alone ? 1 : up + g.up_offset;
    if (g.opening == GateSpec::Opening::kStep) return std::max(gate, 0.0) * up;
    if (g.opening == GateSpec::Opening::kNormal) return gate * std::erfc(-gate / M_SQRT2) / 2 * up;
    return gate / (1 + std::exp(-gate * (g.linear + g.cubic * gate * gate))) * up;
  }
  Vector Ffn(const FloatLayer& layer, int64_t index, int64_t expert, const Vector& x) const {
    const Vector h = Input(layer, OfExpert(Role::kGate, expert), x);
    Vector gate = Linear(layer, index, OfExpert(Role::kGate, expert), h);
    const Vector up = c_.gating.alone ? gate : Linear(layer, index, OfExpert(Role::kUp, expert), h);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = Opened(gate[i], up[i]);
    return Linear(layer, index, OfExpert(Role::kDown, expert), gate);
  }
  // A mixture sums all experts, weighted by the exponentials of the router's outputs: which of them
  // a family chooses does not matter here.
  Vector Mlp(const FloatLayer& layer, int64_t index, const Vector& x) const {
    if (!c_.has_experts(index)) return Ffn(layer, index, -1, x);
    const Vector router = Linear(layer, index, Role::kRouter, Input(layer, Role::kRouter, x));
    const Vector scales = Doubles(layer, LayerVector::kExpertScales);
    Vector sum(x.size());
    for (int64_t e = 0; e < c_.router.all(); ++e) {
      double weight = e < c_.router.experts ? std::exp(router[static_cast<size_t>(e)] / 8) : 1;
      if (!scales.empty()) weight *= scales[static_cast<size_t>(e)];
      Vector y = Ffn(layer, index, e, x);
      for (double& v : y) v *= weight;
      plain::Add(y, sum);
    }
    if (!c_.has_ffn(index)) return sum;
    Vector both(x.size());
    AddOutput(layer, LayerVector::kPostDenseNorm, Ffn(layer, index, -1, x), both);
    AddOutput(layer, LayerVector::kPostExpertsNorm, sum, both);
    return both;
  }
  void AddOutput(const FloatLayer& layer, LayerVector norm, const Vector& y, Vector& x) const {
    plain::Add(c_.has(norm) ? Normed(y, Doubles(layer, norm)) : y, x);
  }
  void Layer(int64_t index, Rows& x) const {
    const FloatLayer layer = rotator_.Layer(index);
    const LayerSpec spec = c_.spec(index);
    const int64_t head_dim = c_.head_shape(index).head_dim;
    RopeTable table;
    if (spec.rope >= 0) table = BuildRope(c_.ropes[static_cast<size_t>(spec.rope)], 64);
    const RopeTable* const rope = spec.rope >= 0 ? &table : nullptr;
    Rows q, k, v;
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector h = Input(layer, Role::kQ, x[t]);
      q.push_back(Linear(layer, index, Role::kQ, h));
      Turn(layer, LayerVector::kQueryNorm, head_dim, rope, static_cast<int64_t>(t), q[t]);
      if (!spec.owns_kv()) continue;
      k.push_back(Linear(layer, index, Role::kK, h));
      v.push_back(Linear(layer, index, Role::kV, h));
      Turn(layer, LayerVector::kKeyNorm, head_dim, rope, static_cast<int64_t>(t), k[t]);
      for (auto at = v[t].begin(); c_.value_norms && at != v[t].end(); at += head_dim) {
        std::ranges::copy(Normed({at, at + head_dim}, {}), at);
      }
    }
    if (spec.owns_kv()) {
      keys_[index] = k, values_[index] = v;
    } else {
      k = keys_.at(spec.kv_layer), v = values_.at(spec.kv_layer);
    }
    for (size_t t = 0; t < x.size(); ++t) {
      const Vector before = x[t];
      const Vector a = Attend(index, Doubles(layer, LayerVector::kSinks), q, k, v, t);
      AddOutput(layer, LayerVector::kPostAttentionNorm, Linear(layer, index, Role::kO, a), x[t]);
      const Vector y = Mlp(layer, index, c_.parallel ? before : x[t]);
      AddOutput(layer, LayerVector::kPostMlpNorm, y, x[t]);
      if (c_.layer_input_size > 0) {
        const auto own = given_[t].begin() + index * c_.layer_input_size;
        Vector gate = Linear(layer, index, Role::kLayerGate, x[t]);
        for (size_t i = 0; i < gate.size(); ++i)
          gate[i] = Opened(gate[i], own[static_cast<int64_t>(i)]);
        AddOutput(layer, LayerVector::kPostLayerInputNorm,
                  Linear(layer, index, Role::kLayerOutput, gate), x[t]);
      }
      for (const double scale : Doubles(layer, LayerVector::kLayerScale)) {
        for (double& value : x[t]) value *= scale;
      }
    }
  }

  const ModelConfig& c_;
  Plan plan_;
  Rotator rotator_;
  bool folded_;
  Tensor head_bias_;
  Vector final_norm_;
  mutable Rows given_;                             // to the layers, of each token
  mutable std::map<int64_t, Rows> keys_, values_;  // of layers, for those that read them
};

void ExpectUnchanged(const std::string& directory) {
  const Network source = OpenNetwork(directory);
  const std::vector<int32_t> ids = {3, 41, 7, 7, 60, 12, 33, 1, 0, 25};
  Recipe plain = kQuarotRecipe, random = kQuarotRecipe, inputs = kQuarotRecipe,
         fourier = kQuarotRecipe;
  plain.rotation = Rotation::kNone, random.rotation = Rotation::kRandom;
  inputs.rotation = Rotation::kInputs, fourier.rotation = Rotation::kFourier;
  random.output_transforms = inputs.output_transforms = fourier.output_transforms = true;
  const Rows exact = Fp64Network(source, plain).Logits(ids);
  for (const Recipe& recipe : {kQuarotRecipe, random, inputs, fourier}) {
    const Rows rotated = Fp64Network(source, recipe).Logits(ids);
    for (size_t t = 0; t < ids.size(); ++t) {
      double largest = 0;
      for (const double v : exact[t]) largest = std::max(largest, std::fabs(v));
      for (size_t n = 0; n < exact[t].size(); ++n) {
        ASSERT_NEAR(rotated[t][n], exact[t][n], 1e-9 * largest) << t << ", " << n;
      }
    }
  }
}

class RotatedFamily : public testing::TestWithParam<FamilyModel> {};

TEST_P(RotatedFamily, LogitsStayInFp64) {
  ExpectUnchanged(
      RandomModel("rotated-" + std::string(GetParam().name), SmallConfig(GetParam().changes)));
}

INSTANTIATE_TEST_SUITE_P(All, RotatedFamily, testing::ValuesIn(FamilyModels()),
                         [](const auto& param) { return std::string(param.param.name); });

// Heads and widths for which no power of two serves.
TEST(RotatedHeads, LogitsStayInFp64) {
  for (const auto& [heads, kv, hidden, inner] : {std::tuple(1, 1, 40, 56),
                                                 {6, 2, 72, 88},
                                                 {9, 3, 72, 104},
                                                 {12, 4, 104, 120},
                                                 {14, 2, 56, 136},
                                                 {20, 5, 88, 152},
                                                 {24, 8, 136, 184},
                                                 {40, 8, 120, 248},
                                                 {56, 8, 168, 296}}) {
    SCOPED_TRACE(heads);
    ExpectUnchanged(RandomModel("rotated-heads", SmallConfig({{"num_attention_heads", heads},
                                                              {"num_key_value_heads", kv},
                                                              {"head_dim", 8},
                                                              {"hidden_size", hidden},
                                                              {"intermediate_size", inner}})));
  }
}

}  // namespace
}  // namespace nibble
