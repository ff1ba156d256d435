// SPDX-License-Identifier: Apache-2.0
// The tables of `nibble bench quality`, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "apps/bench/paper_suite.h"
#include "apps/bench/quality_results.h"

namespace nibble::cli {

struct QualityLine {
  const PaperSection* section;
  const PaperRow* row;
  std::string skipped{};  // why there is no result
  const QualityResult* result = nullptr;
};

struct QualityReport {
  Json settings;                   // model, text, windows, ...: as --json shows them
  double perplexity = 0;           // of the model as it is
  std::string_view published;      // the model whose published figures stand beside; empty: none
  std::vector<std::string> tasks;  // columns of sections that compare accuracy
  std::vector<QualityLine> lines;
};

std::string Markdown(const QualityReport& report);
Json ToJson(const QualityReport& report);

}  // namespace nibble::cli
