// SPDX-License-Identifier: Apache-2.0
// One sequence being written: prompt in, logits of the next token out.
#pragma once

#include <functional>
#include <vector>

#include "engine/model.h"
#include "engine/sampler.h"

namespace nibble {

class Session {
 public:
  explicit Session(Model& model) : model_(model), cache_(model.MakeCache()) {}

  int64_t tokens() const { return cache_.tokens(); }
  int64_t context() const { return model_.context(); }
  const KvCache& cache() const { return cache_; }

  // Appends ids (not empty) and returns the logits of the token after the last one, [vocab]; valid
  // until the next call. Long prompts run in chunks, which changes memory but not a bit of the
  // result. Throws when the sequence would outgrow the context or the logits are not finite.
  std::span<const float> Append(std::span<const int32_t> ids);
  // Append, whose logits need not leave a GPU: the token drawn after the penalties of `counts`.
  int32_t AppendAndSample(std::span<const int32_t> ids, const Sampling& sampling,
                          const TokenCounts& counts, Rng& rng);
  // Forgets all but the first `tokens` tokens, or all (KvCache::Truncate).
  void Truncate(int64_t tokens) { cache_.Truncate(tokens); }

 private:
  // Runs the ids and returns the last row of the residual stream.
  const float* Run(std::span<const int32_t> ids);
  std::span<const float> ReadLogits(const float* last_row);

  Model& model_;
  KvCache cache_;
  std::vector<float> logits_;
};

struct GenerateOptions {
  int64_t max_tokens = 256;
  Sampling sampling;
  uint64_t seed = 0;
  std::vector<int32_t> stop_ids;  // end-of-sequence ids; the one that ends a text is not returned
};

// Why a text ends: a stop id or on_token's word, max_tokens, the context's end, Ctrl-C.
enum class Finish { kStop, kLength, kContext, kInterrupt };

struct Generation {
  std::vector<int32_t> ids;
  Finish finish = Finish::kLength;
  double prompt_seconds = 0, decode_seconds = 0;
  int64_t decode_steps = 0;  // forward passes of one token
};

// Continues `session` with `prompt` until a stop id, max_tokens, the context's end or an interrupt.
// on_token sees every token as soon as it is known and says whether to go on. Penalties look at
// `prompt`, not at what the session had before.
Generation Generate(Session& session, std::span<const int32_t> prompt,
                    const GenerateOptions& options,
                    const std::function<bool(int32_t)>& on_token = {});

}  // namespace nibble
