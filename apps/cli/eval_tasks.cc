// SPDX-License-Identifier: Apache-2.0
// eval tasks and eval loglikelihood: zero-shot tasks, and single requests for other harnesses.
#include <cmath>
#include <memory>

#include "apps/cli/cli.h"
#include "eval/request_file.h"
#include "eval/task_run.h"

namespace nibble::cli {
namespace {

struct TasksArguments {
  std::string model, requests;
  bool no_bos = false;
  TaskOptions tasks;
};

void RunTasks(TasksArguments& a, const Common& common) {
  if (a.tasks.resume && a.tasks.results.empty()) FailUsage("--resume needs --results FILE");
  for (const std::string& task : a.tasks.tasks) FindTask(task);
  a.tasks.special = !a.no_bos;
  const auto model = Load(a.model, common, a.tasks.decoded);
  const Tokenizer tokenizer = Tokenizer::Load(a.model);
  Json rows = Json::array();
  std::vector<std::vector<std::string>> table = {
      {"task", "questions", "metric", "value", "stderr"}};
  for (const TaskResult& r : EvaluateTasks(*model, tokenizer, a.tasks)) {
    Json row = {{"task", r.task}, {"questions", r.questions}};
    for (const Metric& m : r.metrics) {
      row[m.name] = m.value;
      row[m.name + "_stderr"] = m.standard_error;
      table.push_back(
          {r.task, std::to_string(r.questions), m.name, fmt::format("{:.4f}", m.value),
           std::isnan(m.standard_error) ? "-" : fmt::format("{:.4f}", m.standard_error)});
    }
    rows.push_back(row);
  }
  if (common.json) {
    PrintJson(rows);
  } else {
    fmt::print("{}", Table(table));
  }
}

void RunLogLikelihood(const TasksArguments& a, const Common& common) {
  const auto model = Load(a.model, common, a.tasks.decoded);
  Json rows = Json::array();
  std::vector<std::vector<std::string>> table = {{"request", "log-likelihood", "greedy"}};
  for (const Likelihood& l : EvaluateRequests(*model, a.model, a.requests, !a.no_bos)) {
    rows.push_back({{"log_likelihood", l.log_likelihood}, {"is_greedy", l.greedy}});
    table.push_back({std::to_string(table.size()), fmt::format("{:.4f}", l.log_likelihood),
                     l.greedy ? "yes" : "no"});
  }
  if (common.json) {
    PrintJson(rows);
  } else {
    fmt::print("{}", Table(table));
  }
}

void AddTaskOptions(CLI::App& verb, TasksArguments& a) {
  AddModel(verb, a.model)->required();
  verb.add_flag(
      "--no-bos", a.no_bos,
      "Without the tokenizer's special tokens, as lm-evaluation-harness did until late 2025");
  verb.add_flag("--decoded", a.tasks.decoded, "Decode codes and cache to fp32, as in eval ppl");
}

}  // namespace

void AddEvalTasks(CLI::App& eval, Common& common, Run& run) {
  const auto a = std::make_shared<TasksArguments>();
  std::string names;
  for (const TaskSpec& task : TaskTable()) names += fmt::format(" {}", task.name);
  CLI::App* tasks = AddVerb(eval, common, "tasks", "Zero-shot tasks, as lm-evaluation-harness does",
                            "nibble eval tasks llama-w4a4kv4 --tasks piqa,winogrande --data tasks");
  AddTaskOptions(*tasks, *a);
  tasks->add_option("--tasks", a->tasks.tasks, "Names, separated by commas:" + names)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->required();
  tasks->add_option("--data", a->tasks.data, "Directory of TASK.jsonl (docs/benchmarks.md)")
      ->required();
  tasks->add_option("--limit", a->tasks.limit, "Only the first N questions of each task; 0 = all")
      ->check(kNotNegative);
  tasks->add_option("--results", a->tasks.results,
                    "File that keeps the answers question by question as they come");
  tasks->add_flag("--resume", a->tasks.resume, "Continue the run that --results holds");
  tasks->callback([a, &common, &run] { run = [a, &common] { RunTasks(*a, common); }; });

  CLI::App* requests =
      AddVerb(eval, common, "loglikelihood", "Log-likelihoods of given continuations",
              "nibble eval loglikelihood llama-w4a4kv4 --requests requests.jsonl --json");
  AddTaskOptions(*requests, *a);
  requests
      ->add_option(
          "--requests", a->requests,
          "JSON Lines {\"context\", \"continuation\"}: texts, or arrays of token ids, which need "
          "no tokenizer")
      ->required();
  requests->callback([a, &common, &run] { run = [a, &common] { RunLogLikelihood(*a, common); }; });
}

}  // namespace nibble::cli
