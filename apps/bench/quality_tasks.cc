// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/quality_tasks.h"

#include <filesystem>

#include "eval/task_run.h"
#include "io/sha256.h"

namespace nibble::cli {

QualityTasks::QualityTasks(const std::string& data, int64_t limit) : data_(data), limit_(limit) {
  if (data.empty()) return;
  std::string known = std::to_string(limit);
  for (const TaskSpec& task : TaskTable()) {
    const std::string file = fmt::format("{}/{}.jsonl", data, task.name);
    if (!std::filesystem::exists(file)) continue;
    names_.emplace_back(task.name);
    known += fmt::format(" {} {}", task.name, Sha256File(file));
  }
  if (names_.empty()) FailUsage("--data {}: no file of a known task (TASK.jsonl)", data);
  digest_ = Sha256(std::as_bytes(std::span(known)));
}

std::map<std::string, double> QualityTasks::Accuracies(Model& model,
                                                       const std::string& model_directory) const {
  const Tokenizer tokenizer = Tokenizer::Load(model_directory);
  const TaskOptions options = {.tasks = names_, .data = data_, .limit = limit_};
  std::map<std::string, double> accuracies;
  for (const TaskResult& task : EvaluateTasks(model, tokenizer, options)) {
    for (const char* name : {"acc", "acc_norm"}) {
      for (const Metric& metric : task.metrics) {
        if (metric.name == name) accuracies[task.task] = metric.value;
      }
    }
  }
  return accuracies;
}

}  // namespace nibble::cli
