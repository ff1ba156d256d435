// SPDX-License-Identifier: Apache-2.0
// Zero-shot accuracies as a column of `nibble bench quality`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/model.h"

namespace nibble::cli {

class QualityTasks {
 public:
  // The known tasks (eval/tasks.h) whose TASK.jsonl lies in `data`, the first `limit` questions of
  // each, 0 = all. `data` empty: no tasks. Throws (usage) if a directory holds none.
  QualityTasks(const std::string& data, int64_t limit);

  const std::vector<std::string>& names() const { return names_; }
  const std::string& digest() const { return digest_; }  // of the questions

  // Share of right answers by task: acc_norm where a task has one, as QuaRot's tables, else acc.
  // `model_directory` holds the tokenizer.
  std::map<std::string, double> Accuracies(Model& model, const std::string& model_directory) const;

 private:
  std::string data_, digest_;
  int64_t limit_;
  std::vector<std::string> names_;
};

}  // namespace nibble::cli
