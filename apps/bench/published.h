// SPDX-License-Identifier: Apache-2.0
// What the papers publish for the rows of their tables, as data (published.tsv, speeds.tsv).
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace nibble::cli {

struct PublishedFigure {
  std::string_view source;        // "QuaRot, Table 1"
  std::string_view section, row;  // of PaperSuite(); a row that is not there is one of that section
  std::string_view model;         // "llama2-7b"
  // "perplexity" on WikiText-2, "c4" and "ptb" likewise, a task's accuracy in %, "average" of them.
  std::string_view measure;
  std::string_view value;  // as printed
};

std::span<const PublishedFigure> PublishedFigures();
// The models that there are figures of, in order of appearance.
std::vector<std::string_view> PublishedModels();
// The figure as printed; empty: there is none.
std::string_view PublishedValue(std::string_view section, std::string_view row,
                                std::string_view model, std::string_view measure);

// What papers have for a line of `bench paper`, QuaRot's Tables 14 to 17 fp16 beside 4 bits and
// Atom what its products reach, or Atom for two formats of `bench serve --memory`, the ratio of
// their most tokens a second; empty: nothing.
std::string_view PublishedSpeed(std::string_view what, std::string_view shape);

}  // namespace nibble::cli
