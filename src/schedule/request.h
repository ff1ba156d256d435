// SPDX-License-Identifier: Apache-2.0
// A request to a model that many share, and what comes back, step by step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/pooling.h"
#include "engine/sampler.h"

namespace nibble {

class Grammar;

struct GenerationRequest {
  std::vector<int32_t> prompt;  // not empty
  int64_t max_tokens = 16;      // 0: only what there is to say of the prompt
  int64_t min_tokens = 0;       // no stop id before so many
  int n = 1;                    // answers, apart in their seeds
  Sampling sampling;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to logits
  std::vector<int32_t> stop_ids;                      // empty: ends are ignored
  std::vector<std::string> stops;
  bool include_stop = false;           // in the text
  bool special_text = false;           // special tokens are text, too
  std::vector<int32_t> markers;        // tokens that are told as such and never as text
  std::optional<int> logprobs;         // of tokens written: this many of the likeliest beside each
  std::optional<int> prompt_logprobs;  // of the prompt's tokens
  std::shared_ptr<const Grammar> grammar;  // what the text must be, or null
  std::optional<int32_t> grammar_after;    // only behind this token, as the end of reasoning
  // Once the grammar has ended, the text is free until grammar_after comes again.
  bool grammar_repeats = false;
  std::optional<Pooling> pooling;  // only the prompt's embedding; max_tokens is 0
  std::string client;              // whose turn it is: requests of one client wait for each other
};

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;  // of the model's own distribution, before temperature, penalties and masks
  std::vector<std::pair<int32_t, double>> top;  // the likeliest ones, with theirs
};

// kError: `problem` says why, and what was written before stands.
enum class End { kStop, kLength, kCancelled, kError };

// The part that a step added to one answer.
struct Delta {
  int index = 0;                       // of n
  std::string text;                    // nothing that a stop string may still take back
  std::optional<int32_t> marker;       // one of request.markers, behind the text
  std::vector<int32_t> ids;            // tokens that became known, the end's stop id included
  std::vector<TokenLogprob> logprobs;  // theirs, where asked for
  std::vector<TokenLogprob> prompt_logprobs;  // of prompt tokens from the second one on, as run
  std::vector<float> embedding;               // [hidden_size]

  std::optional<End> end;  // nothing follows
  std::string stop;        // the stop string found, if it was one
  std::string problem;
  int64_t cached_tokens = 0;  // of the prompt, taken from earlier work
};

}  // namespace nibble
