// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <algorithm>
#include <chrono>

#include "base/interrupt.h"
#include "tensor/finite.h"

namespace nibble {
const float* Session::Run(std::span<const int32_t> ids) {
  NIBBLE_CHECK(!ids.empty());
  const int64_t total = tokens() + static_cast<int64_t>(ids.size());
  if (total > model_.context()) {
    FailUsage("{} tokens do not fit into the context of {}; shorten the prompt", total,
              model_.context());
  }
  for (int32_t id : ids) {
    if (id < 0 || id >= model_.config().vocab_size) {
      FailUsage("token id {} is outside the vocabulary of {}", id, model_.config().vocab_size);
    }
  }
  const auto chunk_tokens = static_cast<size_t>(model_.backend().ChunkTokens());
  const float* last_row = nullptr;
  while (!ids.empty()) {
    const auto chunk = ids.first(std::min(ids.size(), chunk_tokens));
    const Model::Sequence sequence = {chunk, &cache_};
    const float* x = model_.Forward({&sequence, 1});
    last_row = x + (chunk.size() - 1) * static_cast<size_t>(model_.config().hidden_size);
    ids = ids.subspan(chunk.size());
  }
  return last_row;
}

std::span<const float> Session::ReadLogits(const float* last_row) {
  const float* logits = model_.Logits(last_row, 1);
  logits_.assign(logits, logits + model_.config().vocab_size);
  if (!AllFinite(logits_)) model_.FailNotFinite(fmt::format("after {} tokens", tokens()));
  return logits_;
}

std::span<const float> Session::Append(std::span<const int32_t> ids) {
  return ReadLogits(Run(ids));
}

int32_t Session::AppendAndSample(std::span<const int32_t> ids, const Sampling& sampling,
                                 const TokenCounts& counts, Rng& rng) {
  const float* const last_row = Run(ids);
  const std::optional<LikelyQuery> query = QueryOf(sampling);
  if (query && !sampling.penalizes()) {
    constexpr int32_t kRow = 0;
    const Likely likely = model_.FindLikely(last_row, 1, {&kRow, 1}, {&*query, 1}).front();
    if (!likely.finite) model_.FailNotFinite(fmt::format("after {} tokens", tokens()));
    if (const auto id = Draw(likely, sampling, rng)) return *id;
  }
  ReadLogits(last_row);
  if (sampling.penalizes()) counts.Penalize(logits_, sampling);
  return Sample(logits_, sampling, rng);
}

Generation Generate(Session& session, std::span<const int32_t> prompt,
                    const GenerateOptions& options, const std::function<bool(int32_t)>& on_token) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  CheckSampling(options.sampling);
  Generation result;
  Rng rng(options.seed);
  TokenCounts counts;
  counts.AddPrompt(prompt);
  auto start = Clock::now();
  int32_t id = session.AppendAndSample(prompt, options.sampling, counts, rng);
  result.prompt_seconds = seconds_since(start);
  start = Clock::now();
  while (static_cast<int64_t>(result.ids.size()) < options.max_tokens) {
    if (Interrupted()) {
      result.finish = Finish::kInterrupt;
      break;
    }
    const auto& stops = options.stop_ids;
    if (std::find(stops.begin(), stops.end(), id) != stops.end()) {
      result.finish = Finish::kStop;
      break;
    }
    result.ids.push_back(id);
    counts.AddWritten(id);
    if (on_token && !on_token(id)) {
      result.finish = Finish::kStop;
      break;
    }
    if (static_cast<int64_t>(result.ids.size()) == options.max_tokens) break;
    if (session.tokens() >= session.context()) {
      result.finish = Finish::kContext;
      break;
    }
    id = session.AppendAndSample({&id, 1}, options.sampling, counts, rng);
    ++result.decode_steps;
  }
  result.decode_seconds = seconds_since(start);
  return result;
}

}  // namespace nibble
