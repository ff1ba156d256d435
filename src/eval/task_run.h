// SPDX-License-Identifier: Apache-2.0
// Running zero-shot tasks (tasks.h) on a model.
#pragma once

#include <string>
#include <vector>

#include "eval/tasks.h"

namespace nibble {

struct TaskOptions {
  std::vector<std::string> tasks;
  std::string data;      // directory of NAME.jsonl
  int64_t limit = 0;     // questions of each task; 0 = all
  bool special = true;   // the tokenizer's special tokens (BOS) around every text
  bool decoded = false;  // how the model was loaded: part of what the results file remembers
  std::string results;   // file that keeps finished questions (results_file.h); empty = none
  bool resume = false;   // continue it
};

struct TaskResult {
  std::string task;
  int64_t questions = 0;
  std::vector<Metric> metrics;
};

// Throws kInterrupted after SIGINT when the finished questions are kept, kFailed when not.
std::vector<TaskResult> EvaluateTasks(Model& model, const Tokenizer& tokenizer,
                                      const TaskOptions& options);

}  // namespace nibble
