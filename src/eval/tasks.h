// SPDX-License-Identifier: Apache-2.0
// Zero-shot tasks with the definitions of lm-evaluation-harness 0.4. A task is a row of
// task_table.cc; its data is a file of JSON Lines, one question a line.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "eval/likelihood.h"

namespace nibble {

struct TaskSpec {
  std::string_view name;  // the data is NAME.jsonl
  // The choices of a question: one context with several continuations, several contexts with one
  // continuation (partial evaluation, Trinh and Le 2018), or none: the continuation itself must be
  // what greedy decoding writes.
  enum class Kind { kContinuations, kContexts, kLastWord } kind;
  std::string_view context;       // field: a string, of kContexts an array of them
  std::string_view context_end;   // appended to it
  std::string_view continuation;  // field: a string, of kContinuations an array of them
  bool normalized;                // acc_norm is reported, too
  Json (*prepare)(const Json& line, const std::string& where) = nullptr;  // makes these fields
};

std::span<const TaskSpec> TaskTable();
// The row of a name; an unknown one is a usage error listing the known ones.
const TaskSpec& FindTask(std::string_view name);

struct TaskQuestion {
  std::vector<std::pair<std::string, std::string>> pairs;  // context, continuation of each choice
  std::vector<double> lengths;  // of each choice in characters: what acc_norm divides by
  int64_t gold = 0;             // index of the right choice
  std::string where;            // "FILE:LINE"
};

// The first `limit` questions of a file (0 = all). Throws kFailed naming file, line and field.
std::vector<TaskQuestion> LoadTask(const TaskSpec& task, const std::string& path, int64_t limit);

// Index of the most likely choice, by log-likelihood or by log-likelihood per character; the first
// of equals.
int64_t Choice(const std::vector<Likelihood>& answer);
int64_t NormalizedChoice(const std::vector<Likelihood>& answer, const TaskQuestion& question);

struct Metric {
  std::string name;
  double value = 0;
  double standard_error = 0;  // NaN for a single question
};
// acc: share of right choices (kLastWord: of words that are greedy); acc_norm; of kLastWord
// perplexity, exp of the mean loss of a word. Standard errors of shares are the sample standard
// deviation / sqrt(n); of the perplexity that times the perplexity (delta method; the harness draws
// 100 bootstrap samples instead).
std::vector<Metric> Metrics(const TaskSpec& task, const std::vector<TaskQuestion>& questions,
                            const std::vector<std::vector<Likelihood>>& answers);

}  // namespace nibble
