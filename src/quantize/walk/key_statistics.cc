// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/key_statistics.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

// Outputs [tokens, N] of a linear behind a norm for the inputs x [tokens, hidden].
std::vector<float> Project(Backend& backend, const PackedLinear& linear, const float* x,
                           int64_t tokens) {
  const InputSpec input = {.width = linear.weights.cols};
  const LinearId id =
      backend.Upload({.weights = linear.weights, .bias = linear.bias, .input = input});
  Buffer<float> y(backend.allocator());
  const int64_t width = linear.weights.rows, count = tokens * width;
  backend.Gemm(backend.PrepareActs({.x = x}, tokens, input), id, y.Grow(count), width, false);
  backend.Release(id);
  const float* const values = backend.Read(y.data(), count);
  return {values, values + count};
}

// RMS norm of each `weight.size()` values, in place; without weights they stay.
void Norm(const std::vector<float>& weight, double eps, std::vector<float>& values) {
  for (size_t at = 0; !weight.empty() && at < values.size(); at += weight.size()) {
    double squares = 0;
    for (size_t i = 0; i < weight.size(); ++i) squares += std::pow(double{values[at + i]}, 2);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(weight.size()) + eps);
    for (size_t i = 0; i < weight.size(); ++i) {
      values[at + i] = static_cast<float>(values[at + i] * factor * weight[i]);
    }
  }
}

// The channel of a head that RoPE turns this one into, or itself.
size_t Partner(size_t i, size_t turned) {
  if (i >= turned) return i;
  return i < turned / 2 ? i + turned / 2 : i - turned / 2;
}

// One value for the channels of a pair, and for all heads if they are `alike`.
template <typename Join>
void Share(size_t head_dim, size_t turned, bool alike, const Join& join, std::vector<double>& of) {
  const std::vector<double> own = of;
  for (size_t n = 0; n < of.size(); ++n) {
    const size_t i = n % head_dim, partner = Partner(i, turned);
    of[n] = 0;
    for (size_t head = 0; head < of.size(); head += head_dim) {
      if (!alike && head != n - i) continue;
      of[n] = join(of[n], partner == i ? own[head + i] : join(own[head + i], own[head + partner]));
    }
  }
}

// Adds keys [tokens, sums.size()] of positions 0, 1, .. as RoPE turns them.
void AddTurned(const std::vector<float>& k, size_t head_dim, const Matrix<float>& cos,
               const Matrix<float>& sin, std::vector<double>& sums) {
  const auto angles = static_cast<size_t>(cos.cols);
  for (size_t at = 0; at < k.size(); at += head_dim) {
    const auto position = static_cast<int64_t>(at / sums.size());
    double* const sum = &sums[at % sums.size()];
    for (size_t i = 0; i < angles; ++i) {
      const double a = k[at + i], b = k[at + i + angles];
      const double c = cos.row(position)[i], s = sin.row(position)[i];
      sum[i] += a * c - b * s;
      sum[i + angles] += b * c + a * s;
    }
    for (size_t i = 2 * angles; i < head_dim; ++i) sum[i] += k[at + i];
  }
}

}  // namespace

KeyStatistics CollectKeys(Backend& backend, const ModelConfig& config, int64_t index,
                          const LayerWeights& layer, Stream& stream) {
  const LayerSpec spec = config.spec(index);
  if (!spec.owns_kv()) return {};
  const auto [heads, kv_heads, head_dim] = config.head_shape(index);
  const auto d = static_cast<size_t>(head_dim), k_width = static_cast<size_t>(kv_heads) * d,
             q_width = static_cast<size_t>(heads) * d, group = q_width / k_width;
  const auto turned = static_cast<size_t>(
      spec.rope < 0 ? 0 : config.ropes[static_cast<size_t>(spec.rope)].head_dim);
  const auto weights = [&](LayerVector norm) {
    return config.has(norm) ? ToF32(layer.vectors[norm]).data : std::vector<float>();
  };
  const std::vector<float> q_norm = weights(LayerVector::kQueryNorm),
                           k_norm = weights(LayerVector::kKeyNorm);
  KeyStatistics seen;
  seen.largest = seen.energy = seen.query_energy = seen.mean = std::vector<double>(k_width);
  const RopeTable rope =
      spec.rope < 0 ? RopeTable{}
                    : BuildRope(config.ropes[static_cast<size_t>(spec.rope)], stream.context());
  Buffer<float> x(backend.allocator());
  const int64_t tokens = stream.context(), count = tokens * config.hidden_size;
  for (int64_t w = 0; w < stream.windows(); ++w) {
    // The values of Input lie where PrepareActs writes, so they are copied.
    backend.Copy(stream.Input(LinearSet::kQkv, w).values, count, x.Grow(count));
    std::vector<float> k = Project(backend, layer[Role::kK], x.data(), tokens),
                       q = Project(backend, layer[Role::kQ], x.data(), tokens);
    Norm(k_norm, config.norm_eps, k), Norm(q_norm, config.norm_eps, q);
    AddTurned(k, d, rope.cos, rope.sin, seen.mean);
    for (size_t at = 0; at < k.size(); ++at) {
      const size_t n = at % k_width, i = n % d;
      const double key = k[at], other = k[at - i + Partner(i, turned)];
      seen.energy[n] += key * key;
      seen.largest[n] =
          std::max(seen.largest[n], i < turned ? std::hypot(key, other) : std::fabs(key));
    }
    for (size_t at = 0; at < q.size(); ++at) {
      const size_t n = at % q_width;
      seen.query_energy[n / (d * group) * d + n % d] += double{q[at]} * q[at];
    }
  }
  const auto rows = static_cast<double>(stream.windows() * tokens);
  for (double& mean : seen.mean) mean /= rows;
  if (config.lends_kv(index)) return {.mean = std::move(seen.mean)};
  const double stretched = turned == 0 ? 1 : double{rope.cos.row(0)[0]};  // by RoPE
  seen.spread = seen.energy;  // right for the two that RoPE turns into each other together
  for (size_t n = 0; n < k_width; ++n) {
    const double mean = seen.mean[n] / (n % d < turned ? stretched : 1);
    seen.spread[n] -= rows * mean * mean;
  }
  const bool alike = k_norm.size() == d;
  const auto max = [](double a, double b) { return std::max(a, b); };
  Share(d, turned, alike, max, seen.largest);
  Share(d, turned, alike, std::plus<>(), seen.energy);
  Share(d, turned, alike, std::plus<>(), seen.spread);
  Share(d, turned, alike, std::plus<>(), seen.query_energy);
  return seen;
}

}  // namespace nibble
