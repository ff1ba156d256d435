// SPDX-License-Identifier: Apache-2.0
#include "eval/likelihood.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "engine/log_sum_exp.h"
#include "text/jinja_text.h"

namespace nibble {
namespace {

constexpr size_t kForwardTokens = 1024;  // of one sequence in a forward; of all in a batch

// Tokens that all requests begin with, but none that predicts a scored token: those run with the
// request, so that its predictions come from one place.
size_t SharedTokens(const Question& question) {
  const std::vector<int32_t>& ids = question[0].ids;
  size_t shared = ids.size();
  for (const Request& r : question) {
    const auto [end, unused] = std::mismatch(ids.begin(), ids.end(), r.ids.begin(), r.ids.end());
    shared = std::min({shared, static_cast<size_t>(end - ids.begin()), r.first - 1});
  }
  return shared;
}

// Appends to each cache its ids, in forwards of bounded size. visit(x, step, done) sees the
// residual stream [rows of the step] of the tokens from `done` on.
template <typename Visit>
void Append(Model& model, std::span<const Model::Sequence> sequences, const Visit& visit) {
  for (size_t done = 0;; done += kForwardTokens) {
    std::vector<Model::Sequence> step;
    std::vector<size_t> origin;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto ids = sequences[i].ids;
      if (ids.size() <= done) continue;
      step.push_back(
          {ids.subspan(done, std::min(kForwardTokens, ids.size() - done)), sequences[i].cache});
      origin.push_back(i);
    }
    if (step.empty()) return;
    visit(model.Forward(step), step, origin, done);
  }
}

}  // namespace

Request JoinPair(std::vector<int32_t> context, std::span<const int32_t> continuation,
                 const ModelLimits& limits, const std::string& where) {
  const auto limit = static_cast<size_t>(limits.context);
  if (continuation.empty()) Fail("{}: the continuation adds no token to the context", where);
  if (continuation.size() > limit) {
    Fail("{}: a continuation of {} tokens; the model's context is {}", where, continuation.size(),
         limit);
  }
  Request request = {.ids = std::move(context)};
  request.ids.insert(request.ids.end(), continuation.begin(), continuation.end());
  if (request.ids.size() > limit + 1) {
    request.ids.erase(request.ids.begin(), request.ids.end() - (limits.context + 1));
  }
  request.first = request.ids.size() - continuation.size();
  if (request.first == 0) Fail("{}: the context has no token", where);
  for (const int32_t id : request.ids) {
    if (id >= 0 && id < limits.vocab_size) continue;
    Fail("{}: token id {} is outside the model's vocabulary of {}", where, id, limits.vocab_size);
  }
  return request;
}

Request EncodePair(const Tokenizer& tokenizer, const std::string& context,
                   const std::string& continuation, bool special, const ModelLimits& limits,
                   const std::string& where) {
  if (context.empty()) {
    std::vector<int32_t> bos = tokenizer.Encode("");
    if (bos.empty()) Fail("{}: the context is empty and this tokenizer adds no BOS", where);
    return JoinPair({bos[0]}, tokenizer.Encode(continuation, false), limits, where);
  }
  const size_t length = jinja::Strip(context, jinja::Side::kRight).size();
  std::vector<int32_t> ids = tokenizer.Encode(context.substr(0, length), special);
  const std::vector<int32_t> whole = tokenizer.Encode(context + continuation, special);
  const auto tail = std::span(whole).subspan(std::min(ids.size(), whole.size()));
  return JoinPair(std::move(ids), tail, limits, where);
}

void RequireFinite(const Model& model, std::span<const Likelihood> answer,
                   const std::string& where) {
  const auto finite = [](const Likelihood& l) { return std::isfinite(l.log_likelihood); };
  if (!std::ranges::all_of(answer, finite)) model.FailNotFinite(where);
}

size_t BatchSize(std::span<const Question> questions) {
  size_t count = 0, tokens = 0;
  for (const Question& question : questions) {
    size_t longest = 0;
    for (const Request& request : question) longest = std::max(longest, request.ids.size());
    tokens += longest;
    if (count > 0 && tokens > kForwardTokens) break;
    ++count;
  }
  return count;
}

struct LikelihoodRunner::Row {
  int32_t target;      // the token it should predict
  Likelihood* result;  // null: a context's token
};

std::vector<std::vector<Likelihood>> LikelihoodRunner::Run(std::span<const Question> questions) {
  while (caches_.size() < questions.size()) caches_.push_back(model_.MakeCache());
  size_t max = 0;
  std::vector<std::vector<Likelihood>> results;
  for (const Question& question : questions) {
    max = std::max(max, question.size());
    results.emplace_back(question.size(), Likelihood{.greedy = true});
  }
  RunPrefixes(questions);
  for (size_t request = 0; request < max; ++request) RunSuffixes(questions, request, &results);
  return results;
}

void LikelihoodRunner::RunPrefixes(std::span<const Question> questions) {
  prefixes_.clear();
  std::vector<Model::Sequence> sequences;
  for (size_t q = 0; q < questions.size(); ++q) {
    prefixes_.push_back(SharedTokens(questions[q]));
    caches_[q].Clear();
    sequences.push_back({std::span(questions[q][0].ids).first(prefixes_[q]), &caches_[q]});
  }
  Append(model_, sequences, [](auto&&...) {});
}

void LikelihoodRunner::RunSuffixes(std::span<const Question> questions, size_t request,
                                   std::vector<std::vector<Likelihood>>* results) {
  std::vector<Model::Sequence> sequences;
  std::vector<size_t> owners, starts;
  for (size_t q = 0; q < questions.size(); ++q) {
    if (request >= questions[q].size()) continue;
    const std::vector<int32_t>& ids = questions[q][request].ids;
    caches_[q].Truncate(static_cast<int64_t>(prefixes_[q]));
    const auto start = static_cast<size_t>(caches_[q].tokens());
    sequences.push_back({std::span(ids).subspan(start, ids.size() - 1 - start), &caches_[q]});
    owners.push_back(q), starts.push_back(start);
  }
  Append(model_, sequences,
         [&](const float* hidden, const auto& step, const auto& origin, size_t done) {
           std::vector<Row> rows;
           for (size_t i = 0; i < step.size(); ++i) {
             const size_t q = owners[origin[i]];
             const Request& r = questions[q][request];
             for (size_t j = 0; j < step[i].ids.size(); ++j) {
               const size_t next = starts[origin[i]] + done + j + 1;
               rows.push_back({r.ids[next], next < r.first ? nullptr : &(*results)[q][request]});
             }
           }
           Score(hidden, rows);
         });
}

void LikelihoodRunner::Score(const float* hidden, const std::vector<Row>& rows) {
  const auto vocab = static_cast<size_t>(model_.config().vocab_size);
  const auto width = static_cast<size_t>(model_.config().hidden_size);
  for (size_t first = 0; first < rows.size(); first += kLogitRows) {
    const size_t count = std::min<size_t>(kLogitRows, rows.size() - first);
    const float* logits = model_.Logits(hidden + first * width, static_cast<int64_t>(count));
    std::vector<Likelihood> tokens(count);
    ParallelFor(count, [&](size_t i) {
      const std::span<const float> row(logits + i * vocab, vocab);
      const auto target = static_cast<size_t>(rows[first + i].target);
      const auto top = std::max_element(row.begin(), row.end()) - row.begin();
      tokens[i] = {static_cast<double>(row[target]) - LogSumExp(row),
                   static_cast<size_t>(top) == target};
    });
    for (size_t i = 0; i < count; ++i) {  // in one order, whatever the threads do
      Likelihood* result = rows[first + i].result;
      if (result == nullptr) continue;
      result->log_likelihood += tokens[i].log_likelihood;
      result->greedy = result->greedy && tokens[i].greedy;
    }
  }
}

}  // namespace nibble
