// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/bench.h"

#include <cmath>
#include <memory>
#include <numeric>

#include "base/half.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "measure/random_network.h"
#include "models/families/family.h"
#include "models/families/shapes.h"
#include "models/import/open_network.h"
#include "quantize/recipes/recipe_fields.h"

namespace nibble::cli {
Json BenchConfig(const BenchArguments& a) {
  if (a.shape.empty()) FailUsage("name a model directory, or --shape llama2-7b");
  const bool whole = a.layers == 0 && a.shape == "llama2-70b";  // 35 GB
  return ShapeConfig(a.shape, whole ? 1 : a.layers);
}

ModelConfig BenchShape(const BenchArguments& a) {
  return ParseConfig(BenchConfig(a), a.shape);
}

Recipe BenchRecipe(const BenchArguments& a) {
  return a.changes.Of(a.recipe.empty() ? a.usual : FindRecipe(a.recipe));
}

Network BenchNetwork(const BenchArguments& a) {
  if (!a.model.empty()) return OpenNetwork(a.model);
  return RandomNetwork(BenchShape(a), BenchRecipe(a), 1);
}

std::string BenchName(const BenchArguments& a, const Network& network) {
  if (!a.model.empty()) return a.model;
  const Recipe recipe = BenchRecipe(a);
  return fmt::format("{}, {} layers, {} W{}A{}KV{}, head W{}A{}", a.shape, network.config.layers,
                     recipe.name, FormatText(recipe.weights), recipe.activations.bits,
                     recipe.k.bits, network.head.weights.format.bits,
                     network.head.input.activations.bits);
}

void WriteTokens(Model& model, std::span<const Model::Sequence> sequences) {
  std::vector<int32_t> rows(sequences.size());
  std::iota(rows.begin(), rows.end(), 0);
  // Random logits are alike, those of trained networks are not: few tokens are listed.
  const std::vector<LikelyQuery> queries(rows.size(), {.cold = 1, .window = 0});
  model.FindLikely(model.Forward(sequences), static_cast<int64_t>(rows.size()), rows, queries);
}

std::vector<int32_t> RandomIds(const ModelConfig& config, int64_t count) {
  Rng rng(1);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(config.vocab_size))));
  }
  return ids;
}

namespace {

// Fills `bytes` bytes from `target` on with repetitions of `values`.
template <typename T>
void Repeat(Backend& backend, const std::vector<T>& values, std::byte* target, int64_t bytes) {
  const auto length = static_cast<int64_t>(values.size() * sizeof(T));
  for (int64_t at = 0; at < bytes; at += length) {
    backend.Write(values.data(), static_cast<size_t>(std::min(length, bytes - at)), target + at);
  }
}

std::vector<float> RandomPiece(int64_t count) {
  Rng rng(2);
  std::vector<float> values(static_cast<size_t>(std::min<int64_t>(count, 1 << 22)));
  for (float& v : values) v = static_cast<float>((rng.Uniform() - 0.5) * std::sqrt(12.0));
  return values;
}

}  // namespace

Buffer<float> RandomFloats(Backend& backend, int64_t count) {
  Buffer<float> buffer(backend.allocator());
  auto* target = reinterpret_cast<std::byte*>(buffer.Grow(count));
  Repeat(backend, RandomPiece(count), target, count * static_cast<int64_t>(sizeof(float)));
  return buffer;
}

Buffer<Intermediate> RandomIntermediates(Backend& backend, int64_t count) {
  const std::vector<float> values = RandomPiece(count);
  Buffer<Intermediate> buffer(backend.allocator());
  const int64_t bytes = count * backend.IntermediateBytes();
  Intermediate* target = buffer.Grow(bytes);
  if (backend.IntermediateBytes() == sizeof(float)) {
    Repeat(backend, values, target, bytes);
    return buffer;
  }
  std::vector<uint16_t> halves;
  for (float v : values) halves.push_back(Bf16FromF32(v));
  Repeat(backend, halves, target, bytes);
  return buffer;
}

double WeightBytes(const Network& network, double experts_read) {
  double bytes = static_cast<double>(network.head.weights.bytes());
  for (const LayerWeights& layer : network.layers) {
    for (const auto& [role, linear] : layer.linears) {
      const double share = ExpertOf(role) < 0 ? 1 : experts_read;
      bytes += share * static_cast<double>(linear.weights.bytes() + linear.tail.bytes());
    }
  }
  return bytes;
}

double StoredBytes(const Network& network) {
  const size_t embedding = network.one_table() ? 0 : network.embedding.bytes();
  return WeightBytes(network) + static_cast<double>(embedding + network.layer_table.bytes() +
                                                    network.layer_projection.weights.bytes());
}

void PrintRows(const std::vector<BenchRow>& rows, const Common& common) {
  if (common.json) {
    Json json = Json::array();
    for (const BenchRow& r : rows) {
      json.push_back({{"name", r.name},
                      {"shape", r.shape},
                      {"median_us", r.time.median * 1e6},
                      {"min_us", r.time.min * 1e6},
                      {"max_us", r.time.max * 1e6}});
      Json& row = json.back();
      if (r.tokens > 0) row["tokens_per_second"] = r.tokens / r.time.median;
      if (r.operations > 0) row["tops"] = r.operations / r.time.median / 1e12;
      if (r.bytes > 0) row["gbps"] = r.bytes / r.time.median / 1e9;
      if (r.peak > 0) row["peak_share"] = r.operations / r.time.median / r.peak;
      if (r.share > 0) row["share"] = r.share;
    }
    return PrintJson(json);
  }
  std::vector<std::vector<std::string>> table = {{"bench", "shape", "median us", "min", "max",
                                                  "tokens/s", "TOPS", "% of peak", "GB/s",
                                                  "% of time"}};
  const auto cell = [](double value, int digits) {
    return value > 0 ? fmt::format("{:.{}f}", value, digits) : std::string();
  };
  for (const BenchRow& r : rows) {
    const double s = r.time.median;
    table.push_back({r.name, r.shape, cell(s * 1e6, 0), cell(r.time.min * 1e6, 0),
                     cell(r.time.max * 1e6, 0), cell(r.tokens / s, 1),
                     cell(r.operations / s / 1e12, 3),
                     r.peak > 0 ? cell(100 * r.operations / s / r.peak, 1) : "",
                     cell(r.bytes / s / 1e9, 1), cell(100 * r.share, 1)});
  }
  fmt::print("{}", Table(table));
}

}  // namespace nibble::cli
