// SPDX-License-Identifier: Apache-2.0
// One answer while it is written.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "engine/kv_cache.h"
#include "schedule/answer_text.h"
#include "schedule/token_picker.h"

namespace nibble {

// Called on the thread that steps, with whatever a step brought.
using DeltaSink = std::function<void(Delta&&)>;

// A request as it was submitted; its n answers share it.
struct Submission {
  uint64_t number = 0;
  GenerationRequest request;
  DeltaSink sink;
  std::atomic<bool> cancelled = false;
};

struct Sequence {
  using Clock = std::chrono::steady_clock;

  Sequence(std::shared_ptr<Submission> s, int i, const Tokenizer& tokenizer,
           const VocabularyTrie* vocabulary)
      : submission(std::move(s)),
        index(i),
        ids(request().prompt),
        picker(request(), index, vocabulary),
        text(tokenizer, request()) {
    delta.index = i;
  }

  const GenerationRequest& request() const { return submission->request; }
  int64_t prompt_tokens() const { return static_cast<int64_t>(request().prompt.size()); }
  int64_t written() const { return static_cast<int64_t>(ids.size()) - prompt_tokens(); }
  // Tokens that the cache does not have yet.
  int64_t pending() const { return static_cast<int64_t>(ids.size()) - cache->tokens(); }
  // The first answer of a request says what there is to say of its prompt.
  bool reports_prompt() const { return request().prompt_logprobs && index == 0; }

  const std::shared_ptr<Submission> submission;
  const int index;
  std::vector<int32_t> ids;  // the prompt and what was written behind it
  TokenPicker picker;
  AnswerText text;
  std::unique_ptr<KvCache> cache;                    // while it runs
  std::vector<std::unique_ptr<Sequence>> followers;  // of the same prompt; begin when that is done
  // It was preempted once: from now on all that it may come to need is reserved, so that it is not
  // preempted again.
  bool reserved = false;
  bool shared = false;            // its prompt's pages are in the tree
  bool stepped = false;           // the step that runs has had its effect on this
  int64_t cached_tokens = 0;      // of the prompt
  int64_t reported = 1;           // prompt tokens whose logprobs were given; the first has none
  std::vector<double> embedding;  // sum of the states that its pooling takes
  Delta delta;                    // of this step
  Clock::time_point arrived = Clock::now(), began, first, last;
};

}  // namespace nibble
