// SPDX-License-Identifier: Apache-2.0
// The likelihood that a model gives a text after another one, as in lm-evaluation-harness 0.4
// (TemplateLM._encode_pair, HFLM._loglikelihood_tokens).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model.h"
#include "text/tokenizer.h"

namespace nibble {

// Tokens of a context and its continuation; ids[first..] are scored, each given all before it.
struct Request {
  std::vector<int32_t> ids;
  size_t first = 0;  // at least 1
};

// Limits of a model's inputs.
struct ModelLimits {
  explicit ModelLimits(Model& model)
      : context(model.context()), vocab_size(model.config().vocab_size) {}
  int64_t context = 0;  // tokens
  int64_t vocab_size = 0;
};

// White space at the end of the context moves to the continuation; the continuation's tokens are
// those of both texts beyond the number that the context alone has. An empty context is BOS.
// `special`: with the special tokens that the tokenizer puts around a text. `where` names the
// request in errors (kFailed).
Request EncodePair(const Tokenizer& tokenizer, const std::string& context,
                   const std::string& continuation, bool special, const ModelLimits& limits,
                   const std::string& where);
// EncodePair from ids. The oldest tokens are dropped until one more is left than the model's
// context, since the last one is never an input. Refuses a continuation without tokens or with more
// than the context, and ids outside the vocabulary.
Request JoinPair(std::vector<int32_t> context, std::span<const int32_t> continuation,
                 const ModelLimits& limits, const std::string& where);

struct Likelihood {
  double log_likelihood = 0;  // of the whole continuation, in nats
  bool greedy = false;        // every token of it is the most likely one (the first of equals)
};

// Throws kFailed when the log-likelihoods of a question are not finite.
void RequireFinite(const Model& model, std::span<const Likelihood> answer,
                   const std::string& where);

// Requests that begin alike, such as the choices of a question.
using Question = std::vector<Request>;

// Runs several questions at once. The tokens that all requests of a question share run once; the
// rest of each request continues from their cache, which is then cut back for the next request.
class LikelihoodRunner {
 public:
  explicit LikelihoodRunner(Model& model) : model_(model) {}

  // One result for each request. On a CPU its bits do not depend on what else is in the batch
  // (docs/numerics.md). Throws kFailed when SIGINT has come before.
  std::vector<std::vector<Likelihood>> Run(std::span<const Question> questions);

 private:
  struct Row;  // one input token: where its prediction counts
  void RunPrefixes(std::span<const Question> questions);
  void RunSuffixes(std::span<const Question> questions, size_t request,
                   std::vector<std::vector<Likelihood>>* results);
  void Score(const float* hidden, const std::vector<Row>& rows);

  Model& model_;
  std::vector<KvCache> caches_;   // one a question; kept for their pages
  std::vector<size_t> prefixes_;  // tokens shared by all requests of a question
};

// The number of first questions whose inputs together have about a prefill chunk's tokens; at least
// one unless `questions` is empty.
size_t BatchSize(std::span<const Question> questions);

}  // namespace nibble
