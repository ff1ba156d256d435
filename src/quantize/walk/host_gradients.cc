// SPDX-License-Identifier: Apache-2.0
// The derivatives of HostMath.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/thread_pool.h"
#include "quantize/round/host_math.h"

namespace nibble {
namespace {

// Calls part(first, count) for parts of `total` items, on several threads.
template <typename Part>
void InParts(int64_t total, int64_t size, const Part& part) {
  ParallelFor(static_cast<size_t>((total + size - 1) / size), [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) * size;
    part(first, std::min(size, total - first));
  });
}

constexpr int64_t kPartRows = 16, kValues = 1 << 14;  // of a part

// out = the pairs of `in` turned by `sign` times the angles of a position.
void Turn(const HeadAngles& angles, int64_t position, float sign, int64_t width, const float* in,
          float* out) {
  const int64_t pairs = angles.count;
  const float* const cos = angles.cos + position * pairs;
  const float* const sin = angles.sin + position * pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = in[i], b = in[i + pairs], s = sign * sin[i];
    out[i] = a * cos[i] - b * s;
    out[i + pairs] = b * cos[i] + a * s;
  }
  std::copy(in + 2 * pairs, in + width, out + 2 * pairs);
}

// values become exp(values - max); returns their sum.
float Exponentials(std::span<float> values) {
  const float max = *std::max_element(values.begin(), values.end());
  float sum = 0;
  for (float& v : values) sum += v = std::exp(v - max);
  return sum;
}

struct Span {
  int64_t begin, end;
};
// The keys that query `row` sees.
Span Visible(const CausalBlock& block, int64_t row) {
  const int64_t end = block.first + row + 1;
  return {block.window > 0 ? std::max<int64_t>(end - block.window, 0) : 0, end};
}

}  // namespace

void HostMath::Widen(const std::byte* values, int64_t count, float* out) const {
  std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
}

void HostMath::ColumnDots(const float* a, const float* b, int64_t rows, int64_t cols,
                          float* sums) const {
  InParts(cols, 128, [&](int64_t first, int64_t count) {
    std::fill_n(sums + first, count, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = first; c < first + count; ++c) sums[c] += a[r * cols + c] * b[r * cols + c];
    }
  });
}

void HostMath::RowPowers(const float* a, int64_t rows, int64_t cols, int64_t groups,
                         float* powers) const {
  InParts(rows, kPartRows, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t begin = g * cols / groups, end = (g + 1) * cols / groups;
        const float* const run = a + r * cols + begin;
        const float sum = std::inner_product(run, run + (end - begin), run, 0.0f);
        powers[g * rows + r] = sum / static_cast<float>(end - begin);
      }
    }
  });
}

void HostMath::NormGradients(const float* x, const float* weight, const float* gradients,
                             int64_t rows, int64_t cols, float eps, float keep, float* out) const {
  const auto gradient = [&](int64_t at, int64_t c) {
    return weight == nullptr ? gradients[at + c] : gradients[at + c] * weight[c];
  };
  InParts(rows, kPartRows, [&](int64_t first, int64_t count) {
    for (int64_t at = first * cols; at < (first + count) * cols; at += cols) {
      const float* v = x + at;
      const auto n = static_cast<float>(cols);
      const float scale = 1 / std::sqrt(std::inner_product(v, v + cols, v, 0.0f) / n + eps);
      float products = 0;
      for (int64_t c = 0; c < cols; ++c) products += v[c] * gradient(at, c);
      const float share = scale * scale * products / n;
      for (int64_t c = 0; c < cols; ++c) {
        out[at + c] =
            (keep == 0 ? 0 : keep * out[at + c]) + scale * (gradient(at, c) - share * v[c]);
      }
    }
  });
}

void HostMath::GateGradients(const GateSpec& gating, const float* gate, const float* up,
                             int64_t count, float* gradients, float* gate_gradients) const {
  InParts(count, kValues, [&](int64_t first, int64_t size) {
    for (int64_t i = first; i < first + size; ++i) {
      const float square = gate[i] * gate[i];
      const float opening = gate[i] * (gating.linear + gating.cubic * square);
      const float gradient = gating.linear + 3 * gating.cubic * square;  // of the opening
      const float sigmoid = 1 / (1 + std::exp(-opening)), through = gate[i] * sigmoid;
      gate_gradients[i] = gradients[i] * up[i] * (sigmoid + through * (1 - sigmoid) * gradient);
      gradients[i] *= through;
    }
  });
}

void HostMath::TakeHead(const float* rows, int64_t tokens, int64_t stride, int64_t width,
                        const HeadAngles& angles, float* head) const {
  for (int64_t t = 0; t < tokens; ++t, rows += stride, head += width) {
    Turn(angles, t, 1, width, rows, head);
  }
}

void HostMath::PutHead(const float* head, int64_t tokens, int64_t stride, int64_t width,
                       const HeadAngles& angles, float* rows) const {
  for (int64_t t = 0; t < tokens; ++t, rows += stride, head += width) {
    Turn(angles, t, -1, width, head, rows);
  }
}

void HostMath::Softmax(const CausalBlock& block, float* scores) const {
  for (int64_t r = 0; r < block.rows; ++r, scores += block.keys()) {
    const Span seen = Visible(block, r);
    const auto count = static_cast<size_t>(seen.end - seen.begin);
    const float factor = 1 / Exponentials({scores + seen.begin, count});
    std::fill(scores, scores + seen.begin, 0.0f);
    for (int64_t k = seen.begin; k < seen.end; ++k) scores[k] *= factor;
    std::fill(scores + seen.end, scores + block.keys(), 0.0f);
  }
}

void HostMath::SoftmaxGradients(const CausalBlock& block, const float* p, float* gradients) const {
  const int64_t keys = block.keys();
  for (int64_t r = 0; r < block.rows; ++r, p += keys, gradients += keys) {
    const float mean = std::inner_product(p, p + keys, gradients, 0.0f);
    for (int64_t k = 0; k < keys; ++k) gradients[k] = p[k] * (gradients[k] - mean);
  }
}

void HostMath::DivergenceGradients(const float* target, int64_t rows, int64_t cols, float* logits,
                                   float* divergences) const {
  InParts(rows, kPartRows, [&](int64_t first, int64_t count) {
    const auto width = static_cast<size_t>(cols);
    std::vector<float> q(width), difference(width);
    for (int64_t r = first; r < first + count; ++r) {
      const float* const t = target + r * cols;
      float* const p = logits + r * cols;
      std::copy_n(t, width, q.begin());
      std::transform(t, t + cols, p, difference.begin(), std::minus<>());
      const float max_t = *std::max_element(t, t + cols), max_p = *std::max_element(p, p + cols);
      const float sum_q = Exponentials(q), sum_p = Exponentials({p, width});
      // log(q / p) = difference of logits - that of the logarithms of their sums.
      const float shift = (max_p + std::log(sum_p)) - (max_t + std::log(sum_q));
      double divergence = 0;
      for (size_t c = 0; c < width; ++c) {
        const float share = q[c] / sum_q;
        divergence += double{share} * (difference[c] + shift);
        p[c] = p[c] / sum_p - share;
      }
      divergences[r] = static_cast<float>(divergence);
    }
  });
}

void HostMath::DrawnGradients(std::span<const float> draws, int64_t cols, float* logits) const {
  InParts(static_cast<int64_t>(draws.size()), kPartRows, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) {
      const std::span<float> p(logits + r * cols, static_cast<size_t>(cols));
      const float sum = Exponentials(p);
      float left = draws[static_cast<size_t>(r)] * sum;
      size_t label = 0;
      while (label + 1 < p.size() && left >= p[label]) left -= p[label++];
      for (float& value : p) value /= sum;
      p[label] -= 1;
    }
  });
}

}  // namespace nibble
