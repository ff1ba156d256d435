// SPDX-License-Identifier: Apache-2.0
// The table of `bench serve --memory`, printed row by row, and its summary beside what Atom's paper
// publishes.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "apps/bench/serve_formats.h"
#include "base/json.h"

namespace nibble::cli {

// One format with one number of streams.
struct ServedRow {
  const ServedFormat* format;
  int64_t streams = 0;  // 0: any number
  std::string problem;  // why there are no figures
  double weight_bytes = 0;
  double cache_bytes = 0, most_cache_bytes = 0;  // of all pages, of those in use at once
  double tokens_per_second = 0;
  double between_ms = 0, between_99_ms = 0;  // of tokens of an answer, median and 99th percentile
  double first_ms = 0, first_99_ms = 0;      // from the request to its first token
  double seconds = 0, read_per_second = 0;
  int64_t answered = 0, preemptions = 0, most_running = 0;  // the last at once
};

class ServedRows {
 public:
  // `formats` must outlive this. With `json` rows go to standard error as they come.
  ServedRows(const std::vector<ServedFormat>& formats, bool json);

  void PrintHeader(const std::string& title) const;
  void Add(ServedRow row);  // and prints it
  // The most tokens a second of each format that has figures, and the ratios of these.
  void PrintSummary() const;
  Json RowsJson() const;
  Json SummaryJson() const;

 private:
  void Show(const std::string& line) const;
  std::string Line(const std::vector<std::string>& cells) const;
  double RatioToWide(const ServedRow& row) const;  // 0: there is none
  template <typename Belongs>
  const ServedRow* Best(const Belongs& belongs) const;
  Json RowJson(const ServedRow& row) const;

  const std::vector<ServedFormat>& formats_;
  const bool json_;
  std::vector<size_t> widths_;
  std::deque<ServedRow> rows_;
};

}  // namespace nibble::cli
