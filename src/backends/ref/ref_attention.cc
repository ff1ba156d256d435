// SPDX-License-Identifier: Apache-2.0
#include "backends/ref/ref_attention.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/thread_pool.h"
#include "formats/quantizer.h"

namespace nibble::ref {
namespace {

// The place of K or V of one (page, head) inside its block.
struct Part {
  const FormatSpec& format;
  int64_t codes, params;  // byte offsets in the block
  int64_t row_bytes, row_params;
};

Part KeyPart(const KvSpec& kv) {
  return {kv.k, 0, kv.k_params(), kv.row_bytes(kv.k), kv.params_per_row(kv.k)};
}

Part ValuePart(const KvSpec& kv) {
  return {kv.v, kv.v_codes(), kv.v_params(), kv.row_bytes(kv.v), kv.params_per_row(kv.v)};
}

struct CacheRow {
  uint8_t* codes;
  uint16_t* params;
};

// page: the one that holds `position`.
CacheRow RowOf(const KvSpec& kv, const Part& part, std::byte* page, int64_t head,
               int64_t position) {
  std::byte* block = page + head * kv.block_bytes();
  const int64_t token = position % kPageTokens;
  return {reinterpret_cast<uint8_t*>(block + part.codes + token * part.row_bytes),
          reinterpret_cast<uint16_t*>(block + part.params) + token * part.row_params};
}

int64_t FirstKey(const AttentionSpec& attention, int64_t position) {
  const int64_t window = attention.sliding_window;
  return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
}

// The cached rows of one head, fp32 [keys, head_dim].
struct CachedHead {
  Matrix<float> keys, values;
};

// Loads the rows of one page, from its recent form or from the usual one.
void LoadPage(const KvSpec& kv, const SequenceSlice& slice, int64_t head, int64_t page, bool recent,
              CachedHead& cached) {
  const KvSpec spec = recent ? kv.Recent() : kv;
  const int64_t first = page * kPageTokens;
  const int64_t end = std::min(first + kPageTokens, cached.keys.rows);
  std::byte* const bytes = recent ? slice.recent_page(first) : slice.page(first);
  const auto load = [&](const Part& part, Matrix<float>& rows) {
    for (int64_t position = first; position < end; ++position) {
      const CacheRow row = RowOf(spec, part, bytes, head, position);
      DequantizeKv(row.codes, row.params, part.format, rows.row(position));
    }
  };
  load(KeyPart(spec), cached.keys);
  load(ValuePart(spec), cached.values);
}

// All keys of a slice as its query at `position` reads them. `before`: the position they were
// loaded for, not behind this one, or -1.
void LoadFor(const KvSpec& kv, const AttentionSpec& attention, const SequenceSlice& slice,
             int64_t head, int64_t before, int64_t position, CachedHead& cached) {
  const auto recent = [&](int64_t at, int64_t page) {
    return kv.recent_bits > 0 && ReadsRecent(at, page);
  };
  const int64_t first = before < 0 ? FirstKey(attention, position) / kPageTokens : 0;
  for (int64_t page = first; page * kPageTokens < cached.keys.rows; ++page) {
    if (before >= 0 && recent(before, page) == recent(position, page)) continue;
    LoadPage(kv, slice, head, page, recent(position, page), cached);
  }
}

// Dimension i turns with i + half by the angle of `position`; the rest of the head stays.
void Rotate(const RopeView& rope, int64_t position, const TransformSpec& rotation,
            std::span<float> x) {
  const auto half = static_cast<size_t>(rope.angles);
  const float* cos = rope.cos + position * rope.angles;
  const float* sin = rope.sin + position * rope.angles;
  for (size_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
  if (!rotation.identity()) ApplyTransform(rotation, x);
}

void NormHead(const float* weight, float eps, std::span<float> x) {
  if (weight == nullptr) return;
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  const double mean = squares / static_cast<double>(x.size());
  const auto factor = static_cast<float>(1 / std::sqrt(mean + double{eps}));
  for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] * factor * weight[i];
}

double Capped(double score, const AttentionSpec& attention) {
  const double cap = attention.softcap;
  return cap > 0 ? cap * std::tanh(score / cap) : score;
}

// The term of a head's sink in the softmax's sum, where a score of `max` has weight 1.
double SinkWeight(const AttentionSpec& attention, int64_t head, double max) {
  return attention.sinks == nullptr ? 0 : std::exp(attention.sinks[head] - max);
}

// One query of a head over keys [first, end).
void AttendRow(const float* q, const Matrix<float>& keys, const Matrix<float>& values,
               int64_t first, int64_t end, const AttentionSpec& attention, int64_t head,
               float* out) {
  const int64_t head_dim = keys.cols;
  std::vector<double> weights;
  double max = -INFINITY;
  for (int64_t j = first; j < end; ++j) {
    double dot = 0;
    for (int64_t d = 0; d < head_dim; ++d) dot += double{q[d]} * keys.row(j)[d];
    weights.push_back(Capped(dot * attention.scale, attention));
    max = std::max(max, weights.back());
  }
  double total = SinkWeight(attention, head, max);
  for (double& weight : weights) total += weight = std::exp(weight - max);
  for (int64_t d = 0; d < head_dim; ++d) {
    double sum = 0;
    for (int64_t j = first; j < end; ++j) sum += weights[j - first] * values.row(j)[d];
    out[d] = static_cast<float>(sum / total);
  }
}

// Queries at positions [position, position + rows), rows `stride` floats apart.
void AttendBlock(const float* q, const Matrix<float>& keys, const Matrix<float>& values,
                 const AttentionSpec& attention, int64_t head, int64_t position, int64_t rows,
                 int64_t stride, float* out) {
  const int64_t head_dim = keys.cols, first = FirstKey(attention, position);
  const int64_t count = position + rows - first;
  Matrix<float> weights(rows, count);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, count, head_dim, attention.scale, q,
              stride, keys.row(first).data(), head_dim, 0, weights.data.data(), count);
  std::vector<float> totals;
  for (int64_t r = 0; r < rows; ++r) {
    const std::span<float> row = weights.row(r);
    const auto begin = row.begin() + (FirstKey(attention, position + r) - first);
    const auto end = row.begin() + (position + r + 1 - first);
    for (auto weight = begin; weight != end; ++weight) {
      *weight = static_cast<float>(Capped(*weight, attention));
    }
    const float max = *std::max_element(begin, end);
    double total = SinkWeight(attention, head, max);
    for (auto weight = begin; weight != end; ++weight) total += * weight = std::exp(*weight - max);
    std::fill(row.begin(), begin, 0.0f);
    std::fill(end, row.end(), 0.0f);
    totals.push_back(static_cast<float>(total));
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, head_dim, count, 1,
              weights.data.data(), count, values.row(first).data(), head_dim, 0, out, stride);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < head_dim; ++d) out[r * stride + d] /= totals[r];
  }
}

}  // namespace

void RopeAndAppend(float* q, float* k, const float* v, const AttentionSpec& attention,
                   const RopeView& rope, const KvSpec& kv, std::span<const SequenceSlice> batch) {
  const int64_t d = kv.head_dim;
  const size_t width = static_cast<size_t>(d);
  const auto store = [](std::span<const float> x, const Part& part, const CacheRow& row) {
    QuantizeKv(x, part.format, row.codes, row.params);
  };
  for (const SequenceSlice& slice : batch) {
    ParallelFor(static_cast<size_t>(slice.tokens), [&](size_t task) {
      const int64_t token = static_cast<int64_t>(task);
      const int64_t row = slice.first_row + token, position = slice.position + token;
      for (int64_t h = 0; h < attention.heads; ++h) {
        const std::span<float> query = {q + (row * attention.heads + h) * d, width};
        NormHead(attention.q_norm, attention.norm_eps, query);
        Rotate(rope, position, kv.rotation, query);
      }
      for (int64_t h = 0; k != nullptr && h < kv.kv_heads; ++h) {
        const std::span<float> key = {k + (row * kv.kv_heads + h) * d, width};
        NormHead(attention.k_norm, attention.norm_eps, key);
        Rotate(rope, position, kv.rotation, key);
        for (size_t i = 0; i < width && attention.key_center != nullptr; ++i) {
          key[i] -= attention.key_center[static_cast<size_t>(h) * width + i];
        }
        const std::span<const float> value = {v + (row * kv.kv_heads + h) * d, width};
        const auto append = [&](const KvSpec& form, std::byte* page) {
          const Part keys = KeyPart(form), values = ValuePart(form);
          store(key, keys, RowOf(form, keys, page, h, position));
          store(value, values, RowOf(form, values, page, h, position));
        };
        append(kv, slice.page(position));
        if (kv.recent_bits > 0) append(kv.Recent(), slice.recent_page(position));
      }
    });
  }
}

void Attention(const float* q, const AttentionSpec& attention, const KvSpec& kv,
               std::span<const SequenceSlice> batch, bool blas, float* out) {
  const int64_t d = kv.head_dim, group = attention.heads / kv.kv_heads;
  const int64_t stride = attention.heads * d;
  ParallelFor(batch.size() * static_cast<size_t>(kv.kv_heads), [&](size_t task) {
    const int64_t kv_head = static_cast<int64_t>(task) % kv.kv_heads;
    const SequenceSlice& slice = batch[task / static_cast<size_t>(kv.kv_heads)];
    const int64_t end = slice.position + slice.tokens;
    CachedHead cached = {Matrix<float>(end, d), Matrix<float>(end, d)};
    const auto& [keys, values] = cached;
    int64_t before = -1, rows = 0;
    for (int64_t t = 0; t < slice.tokens; t += rows) {
      const int64_t position = slice.position + t;
      LoadFor(kv, attention, slice, kv_head, before, position, cached);
      before = position;
      // Queries at positions of one page read the same forms of all pages.
      rows = blas ? std::min(kPageTokens - position % kPageTokens, slice.tokens - t) : 1;
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const int64_t at = (slice.first_row + t) * stride + h * d;
        if (blas) {
          AttendBlock(q + at, keys, values, attention, h, position, rows, stride, out + at);
        } else {
          AttendRow(q + at, keys, values, FirstKey(attention, position), position + 1, attention, h,
                    out + at);
        }
      }
    }
  });
}

}  // namespace nibble::ref
