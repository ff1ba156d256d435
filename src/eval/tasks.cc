// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks.h"

#include <algorithm>
#include <cmath>

#include "eval/json_lines.h"
#include "text/jinja_text.h"

namespace nibble {
namespace {

using Kind = TaskSpec::Kind;

TaskQuestion Parse(const TaskSpec& task, const Json& line, const std::string& where) {
  const Json prepared = task.prepare != nullptr ? task.prepare(line, where) : line;
  const std::string context_field(task.context), continuation_field(task.continuation);
  using Texts = std::vector<std::string>;
  const auto one = [&](const std::string& f) { return JsonGet<std::string>(prepared, f, where); };
  const auto several = [&](const std::string& f) { return JsonGet<Texts>(prepared, f, where); };
  const Texts contexts =
      task.kind == Kind::kContexts ? several(context_field) : Texts{one(context_field)};
  const Texts continuations = task.kind == Kind::kContinuations ? several(continuation_field)
                                                                : Texts{one(continuation_field)};
  TaskQuestion question = {.where = where};
  for (const std::string& context : contexts) {
    for (const std::string& continuation : continuations) {
      question.pairs.emplace_back(context + std::string(task.context_end), " " + continuation);
      const std::string& choice = task.kind == Kind::kContexts ? context : continuation;
      question.lengths.push_back(static_cast<double>(jinja::Chars(choice).size()));
    }
  }
  if (task.kind == Kind::kLastWord) return question;
  const auto choices = static_cast<int64_t>(question.pairs.size());
  if (choices < 2) {
    Fail("{}: {}: {} choices", where,
         task.kind == Kind::kContexts ? context_field : continuation_field, choices);
  }
  question.gold = JsonGet<int64_t>(prepared, "gold", where);
  if (question.gold < 0 || question.gold >= choices) {
    Fail("{}: gold = {}, but there are {} choices", where, question.gold, choices);
  }
  return question;
}

struct MeanAndError {
  double mean = 0, error = 0;
};

MeanAndError Mean(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / count;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, std::sqrt(squares / (count - 1)) / std::sqrt(count)};
}

}  // namespace

std::vector<TaskQuestion> LoadTask(const TaskSpec& task, const std::string& path, int64_t limit) {
  std::vector<TaskQuestion> questions;
  ReadJsonLines(path, [&](const Json& line, const std::string& where) {
    questions.push_back(Parse(task, line, where));
    return limit == 0 || static_cast<int64_t>(questions.size()) < limit;
  });
  if (questions.empty()) Fail("{}: no questions", path);
  return questions;
}

int64_t Choice(const std::vector<Likelihood>& answer) {
  const auto best = std::max_element(
      answer.begin(), answer.end(),
      [](const auto& a, const auto& b) { return a.log_likelihood < b.log_likelihood; });
  return best - answer.begin();
}

int64_t NormalizedChoice(const std::vector<Likelihood>& answer, const TaskQuestion& question) {
  std::vector<double> scores;
  for (size_t i = 0; i < answer.size(); ++i) {
    scores.push_back(answer[i].log_likelihood / question.lengths[i]);
  }
  return std::max_element(scores.begin(), scores.end()) - scores.begin();
}

std::vector<Metric> Metrics(const TaskSpec& task, const std::vector<TaskQuestion>& questions,
                            const std::vector<std::vector<Likelihood>>& answers) {
  std::vector<double> right, right_normalized, loss;
  for (size_t i = 0; i < questions.size(); ++i) {
    if (task.kind == Kind::kLastWord) {
      right.push_back(answers[i][0].greedy ? 1 : 0);
      loss.push_back(-answers[i][0].log_likelihood);
    } else {
      right.push_back(Choice(answers[i]) == questions[i].gold ? 1 : 0);
      right_normalized.push_back(
          NormalizedChoice(answers[i], questions[i]) == questions[i].gold ? 1 : 0);
    }
  }
  std::vector<Metric> metrics;
  const auto add = [&](const char* name, const std::vector<double>& values) {
    const auto [mean, error] = Mean(values);
    metrics.push_back({name, mean, error});
  };
  add("acc", right);
  if (task.normalized) add("acc_norm", right_normalized);
  if (task.kind == Kind::kLastWord) {
    const auto [mean, error] = Mean(loss);
    metrics.push_back({"perplexity", std::exp(mean), std::exp(mean) * error});
  }
  return metrics;
}

}  // namespace nibble
