// SPDX-License-Identifier: Apache-2.0
#include "quantize/plan/choose_cache.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/thread_pool.h"
#include "engine/log_sum_exp.h"
#include "engine/model.h"
#include "models/import/open_network.h"

namespace nibble {
namespace {

// Windows of text that are read, tokens of each, and predictions of each that are compared.
constexpr int64_t kCacheWindows = 2, kCacheTokens = 256, kCachePredictions = 64;
// At most so many parts are measured; those of deeper models are of several layers.
constexpr int64_t kMaxCacheParts = 40;

FormatSpec Narrow(FormatSpec format) {
  format.bits = kNarrowCacheBits;
  return format;
}

// Keys or values of layers that follow each other.
struct CachePart {
  FormatSpec CacheFormats::*of;
  std::vector<int64_t> layers = {};
  int64_t values = 0;  // cached ones of a text of usual length
  double cost = 0;     // in four bits
};

std::vector<CachePart> WideParts(const ModelConfig& config, const Plan& plan) {
  std::vector<FormatSpec CacheFormats::*> kinds;
  if (IsWideCache(plan.k)) kinds.push_back(&CacheFormats::k);
  if (IsWideCache(plan.v)) kinds.push_back(&CacheFormats::v);
  const int64_t max = (config.layers * std::ssize(kinds) + kMaxCacheParts - 1) / kMaxCacheParts;
  std::vector<CachePart> parts;
  for (const auto kind : kinds) {
    parts.push_back({kind});
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      if (!config.spec(layer).owns_kv()) continue;
      if (std::ssize(parts.back().layers) == max) parts.push_back({kind});
      parts.back().layers.push_back(layer);
      parts.back().values +=
          config.head_shape(layer).kv_width() * UsualTokens(config.spec(layer).sliding_window);
    }
  }
  return parts;
}

// The layers of these parts, which have four bits; their other halves as `others`.
std::map<int64_t, CacheFormats> Narrowed(const Plan& plan, std::span<const CachePart> parts,
                                         const CacheFormats& others) {
  std::map<int64_t, CacheFormats> caches;
  const CacheFormats narrow = {Narrow(plan.k), Narrow(plan.v)};
  for (const CachePart& part : parts) {
    for (const int64_t layer : part.layers) {
      caches.try_emplace(layer, others).first->second.*part.of = narrow.*part.of;
    }
  }
  return caches;
}

// The checkpoint's network without rounding of activations.
Network WithExactActivations(const std::string& checkpoint) {
  Network network = OpenNetwork(checkpoint);
  const auto exact = [](InputSpec& input) { input.activations = input.tail_activations = {}; };
  for (LayerWeights& layer : network.layers) {
    for (auto& [role, linear] : layer.linears) exact(linear.input);
  }
  exact(network.head.input);
  return network;
}

// Predictions of one text with a cache in fp32 and with others.
class CacheComparison {
 public:
  CacheComparison(const std::string& checkpoint, const std::string& device, const Plan& plan,
                  std::span<const int32_t> ids, int64_t context)
      : model_(WithExactActivations(checkpoint), MakeBackend(device, false)),
        plan_(plan),
        length_(std::min(context, kCacheTokens)) {
    const auto windows = std::min<int64_t>(kCacheWindows, std::ssize(ids) / context);
    for (int64_t w = 0; w < windows; ++w) {
      windows_.push_back(
          ids.subspan(static_cast<size_t>(w * context), static_cast<size_t>(length_)));
      const int64_t rows = std::min(kCachePredictions, length_);
      for (int64_t i = 1; i <= rows; ++i) {
        rows_.push_back(static_cast<int32_t>(w * length_ + i * length_ / rows - 1));
      }
    }
    UseCaches({});
    VisitLogits([&](std::span<const float> logits) {
      reference_.insert(reference_.end(), logits.begin(), logits.end());
    });
  }

  const ModelConfig& config() const { return model_.config(); }

  // Mean divergence of the predictions with these parts in four bits.
  double Cost(std::span<const CachePart> narrow) {
    UseCaches(narrow);
    const auto vocab = static_cast<size_t>(model_.config().vocab_size);
    std::vector<double> divergences;
    VisitLogits([&](std::span<const float> logits) {
      const size_t first = divergences.size(), rows = logits.size() / vocab;
      divergences.resize(first + rows);
      ParallelFor(rows, [&](size_t i) {
        divergences[first + i] =
            Divergence(std::span(reference_).subspan((first + i) * vocab, vocab),
                       logits.subspan(i * vocab, vocab));
      });
    });
    const double cost = std::reduce(divergences.begin(), divergences.end()) /
                        static_cast<double>(divergences.size());
    if (!std::isfinite(cost)) model_.FailNotFinite("text for calibration");
    return cost;
  }

 private:
  void UseCaches(std::span<const CachePart> narrow) {
    Plan plan = plan_;
    plan.k = plan.v = {.bits = 32};
    plan.layer_caches = Narrowed(plan_, narrow, {plan.k, plan.v});
    model_.UseCaches(LayerCaches(config(), plan));
  }
  // Visits the logits of rows_, some rows at a time.
  void VisitLogits(const std::function<void(std::span<const float>)>& visit) {
    std::vector<KvCache> caches;
    for (size_t w = 0; w < windows_.size(); ++w) caches.push_back(model_.MakeCache());
    std::vector<Model::Sequence> sequences;
    for (size_t w = 0; w < windows_.size(); ++w) sequences.push_back({windows_[w], &caches[w]});
    const float* const x = model_.Forward(sequences);
    const int64_t tokens = std::ssize(windows_) * length_;
    for (size_t first = 0; first < rows_.size(); first += kLogitRows) {
      const size_t rows = std::min<size_t>(kLogitRows, rows_.size() - first);
      const float* const logits = model_.Logits(x, tokens, std::span(rows_).subspan(first, rows));
      visit({logits, rows * static_cast<size_t>(model_.config().vocab_size)});
    }
  }

  Model model_;
  const Plan& plan_;
  const int64_t length_;
  std::vector<std::span<const int32_t>> windows_;
  std::vector<int32_t> rows_;  // of all windows' tokens, whose predictions are compared
  std::vector<float> reference_;
};

// Sorts parts, the cheapest for their size first, and returns how many of the first ones may cost
// `most` by the sum of their costs.
size_t CountWithin(double max, std::vector<CachePart>& parts) {
  std::ranges::stable_sort(parts, {}, [](const CachePart& part) {
    return part.cost / static_cast<double>(part.values);
  });
  double sum = 0;
  const auto too_many =
      std::ranges::find_if(parts, [&](const CachePart& part) { return (sum += part.cost) > max; });
  return static_cast<size_t>(too_many - parts.begin());
}

}  // namespace

int64_t CacheChoiceTokens(const ModelConfig& config, const Plan& plan) {
  return kCacheWindows * kCacheTokens * (std::ssize(WideParts(config, plan)) + 2);
}

double CacheChoiceBytes(const ModelConfig& config) {
  int64_t values = (kCacheWindows * kCachePredictions + kLogitRows) * config.vocab_size;
  for (int64_t i = 0; i < config.layers; ++i) {
    values += 2 * kCacheWindows * kCacheTokens * config.head_shape(i).kv_width();
  }
  return 4 * static_cast<double>(values);
}

CacheChoice ChooseCaches(const std::string& checkpoint, const std::string& device, double max,
                         std::span<const int32_t> ids, int64_t context, Plan& plan,
                         const std::function<void(double)>& progress) {
  CacheComparison comparison(checkpoint, device, plan, ids, context);
  std::vector<CachePart> parts = WideParts(comparison.config(), plan);
  CacheChoice choice;
  for (size_t i = 0; i < parts.size(); ++i) {
    progress(static_cast<double>(i) / static_cast<double>(parts.size() + 1));
    parts[i].cost = comparison.Cost(std::span(parts).subspan(i, 1));
    choice.parts += std::ssize(parts[i].layers);
  }
  size_t count = CountWithin(max, parts);
  // Together they may cost a little more than their sum.
  for (; count > 0; count -= std::min(count, 1 + count / 16)) {
    progress(1 - 1 / static_cast<double>(parts.size() + 1));
    choice.loss = comparison.Cost(std::span(parts).first(count));
    if (choice.loss <= max) break;
  }
  if (count == 0) choice.loss = 0;
  const auto taken = std::span(parts).first(count);
  for (const CachePart& part : taken) choice.narrow += std::ssize(part.layers);
  plan.layer_caches = Narrowed(plan, taken, {plan.k, plan.v});
  progress(1);
  return choice;
}

}  // namespace nibble
