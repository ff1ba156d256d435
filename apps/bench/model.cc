// SPDX-License-Identifier: Apache-2.0
// Prompts and answers of a whole model.
#include <cmath>
#include <deque>

#include "apps/bench/bench.h"

namespace nibble::cli {
namespace {

// Appends ids to every cache, one prompt after the other, as Session does.
void Fill(Model& model, std::deque<KvCache>& caches, int64_t tokens) {
  const std::vector<int32_t> ids = RandomIds(model.config(), tokens);
  const auto chunk_tokens = static_cast<size_t>(model.backend().ChunkTokens());
  for (KvCache& cache : caches) {
    for (auto rest = std::span(ids).subspan(static_cast<size_t>(cache.tokens())); !rest.empty();) {
      const auto chunk = rest.first(std::min(rest.size(), chunk_tokens));
      const Model::Sequence sequence = {chunk, &cache};
      model.Forward({&sequence, 1});
      rest = rest.subspan(chunk.size());
    }
  }
}

}  // namespace

void RunPrefill(const BenchArguments& a, const Common& common) {
  Model model(BenchNetwork(a), MakeBackend(common.device, false));
  const std::string name = BenchName(a, model.network());
  if (a.tokens > model.context()) {
    FailUsage("{} tokens: the model's context is {}", a.tokens, model.context());
  }
  std::deque<KvCache> caches;
  caches.push_back(model.MakeCache());
  const Timing t = Measure(a.repeats, [&] {
    caches[0].Clear();
    const int64_t last = (a.tokens - 1) % model.backend().ChunkTokens();
    Fill(model, caches, a.tokens - last - 1);
    const std::vector<int32_t> ids = RandomIds(model.config(), last + 1);
    const Model::Sequence sequence = {ids, &caches[0]};
    const float* x = model.Forward({&sequence, 1});
    model.Logits(x + last * model.config().hidden_size, 1);
  });
  PrintRows({{.name = "prefill",
              .shape = fmt::format("{}, {} tokens", name, a.tokens),
              .time = t,
              .tokens = static_cast<double>(a.tokens)}},
            common);
}

namespace {

// The share of a mixture's experts that `tokens` tokens are expected to need if routers treat them
// alike and independently; exact for one token.
double ExpertsRead(const ModelConfig& c, int64_t tokens) {
  if (c.router.experts == 0) return 1;
  const double missed =
      1 - static_cast<double>(c.router.experts_per_token) / static_cast<double>(c.router.experts);
  return 1 - std::pow(missed, static_cast<double>(tokens));
}

}  // namespace

// Tokens written one by one behind `context` tokens, in `batch` sequences at once; every run begins
// there again.
void RunDecode(const BenchArguments& a, const Common& common) {
  Model model(BenchNetwork(a), MakeBackend(common.device, false));
  const std::string name = BenchName(a, model.network());
  const int64_t context = std::max<int64_t>(a.context, 1);
  if (context + a.tokens > model.context()) {
    FailUsage("{} tokens behind a context of {}: the model's context is {}", a.tokens, context,
              model.context());
  }
  std::deque<KvCache> caches;
  for (int64_t i = 0; i < a.batch; ++i) caches.push_back(model.MakeCache());
  const std::vector<int32_t> ids = RandomIds(model.config(), a.batch);
  std::vector<Model::Sequence> sequences;
  for (size_t i = 0; i < caches.size(); ++i) sequences.push_back({{&ids[i], 1}, &caches[i]});
  const auto write = [&] {
    for (int64_t i = 0; i < a.tokens; ++i) WriteTokens(model, sequences);
  };
  const Timing t = Measure(a.repeats, write, [&] {
    for (KvCache& cache : caches) cache.Truncate(std::min(cache.tokens(), context));
    Fill(model, caches, context);  // computes pages that a window gave back again
  });
  PrintRows({{.name = "decode",
              .shape = fmt::format("{}, {} x {} tokens after {}", name, a.batch, a.tokens, context),
              .time = t,
              .tokens = static_cast<double>(a.tokens * a.batch),
              .bytes = static_cast<double>(a.tokens) *
                       WeightBytes(model.network(), ExpertsRead(model.config(), a.batch))}},
            common);
}

}  // namespace nibble::cli
