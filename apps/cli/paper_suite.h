// SPDX-License-Identifier: Apache-2.0
// The quality tables of the papers as data: what `nibble bench quality --suite paper` runs.
#pragma once

#include <array>
#include <string_view>
#include <vector>

namespace nibble::cli {

struct PaperRow {
  std::string_view name;
  // Of `nibble quantize MODEL -o OUT`; empty: the model as it is. Rows of the same arguments run
  // once.
  std::string_view arguments;
  // Perplexity on WikiText-2 as printed for Llama-2 7B, 13B and 70B; empty = not published.
  std::array<std::string_view, 3> published{};
  std::string_view missing{};  // why Nibble cannot run it, whatever the model
};

struct PaperSection {
  std::string_view name;   // for --only
  std::string_view title;  // paper and what its table compares
  std::vector<PaperRow> rows;
  bool tasks = false;  // compares zero-shot accuracy, too
};

// Behind the arguments of every row: the papers leave head and embedding at 16 bits.
inline constexpr std::string_view kPaperTables = " --head-bits 16 --embed-bits 16";

// The first row of the first section is the model as it is, which all gaps are measured from.
const std::vector<PaperSection>& PaperSuite();

}  // namespace nibble::cli
