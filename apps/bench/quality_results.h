// SPDX-License-Identifier: Apache-2.0
// Results that `nibble bench quality` has measured so far, in DIR/results.json: replaced whole
// after every step, so that a stopped run goes on where it was.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/json.h"
#include "io/publish.h"

namespace nibble::cli {

// Results of one set of `nibble quantize` arguments.
struct QualityResult {
  std::string section, name;   // of the first row that asked for it
  std::string formats;         // "W4A4 K4V4"
  double bits_per_weight = 0;  // of the quantized linears, scales included; 0 = none quantized
  double quantize_seconds = 0;
  double perplexity = 0;  // 0 = quantized, not evaluated yet
  double eval_seconds = 0;
  // Zero-shot accuracy by task, and the digest of the questions; empty = not measured.
  std::map<std::string, double> accuracies;
  std::string questions;

  bool done() const { return perplexity > 0; }
};

class QualityResults {
 public:
  // Continues the directory or creates it, for this process alone; `read_only`: writes nothing.
  // `identity` gives everything but the arguments that decides a result; another one on disk is an
  // error that lists the differing fields. It reads the whole model, so it is not called where
  // nothing is there and nothing is written.
  QualityResults(const std::string& directory, const std::function<Json()>& identity,
                 bool read_only);

  const QualityResult* Find(const std::string& arguments) const;  // nothing = not begun
  void Set(const std::string& arguments, const QualityResult& result);

 private:
  void Read();

  std::string directory_, file_;
  Json identity_;
  std::map<std::string, QualityResult> results_;
  std::optional<DirectoryLock> lock_;
};

}  // namespace nibble::cli
