// SPDX-License-Identifier: Apache-2.0
// Answers kept while a long evaluation runs: JSON Lines, the first one saying what is evaluated,
// then one line a question in the order in which they were finished.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "eval/likelihood.h"
#include "io/fd.h"

namespace nibble {

class ResultsFile {
 public:
  using Key = std::pair<std::string, int64_t>;  // task, question (0-based)
  using Answers = std::map<Key, std::vector<Likelihood>>;

  // Creates the file, or continues it when `resume`: refuses an existing one without `resume`, one
  // whose identity (a flat object) differs, naming the fields, and one that another process writes.
  // A last line that was cut off by a killed process is dropped.
  ResultsFile(const std::string& path, const Json& identity, bool resume);

  const Answers& answers() const { return answers_; }  // of earlier runs
  // Appends answers to the questions first, first + 1, ... of a task.
  void Append(const std::string& task, int64_t first,
              std::span<const std::vector<Likelihood>> answers);

 private:
  void Read(const Json& identity);

  std::string path_;
  Fd fd_;
  Answers answers_;
};

}  // namespace nibble
