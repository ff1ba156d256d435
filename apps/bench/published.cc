// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/published.h"

#include <algorithm>
#include <array>

#include "base/embedded.h"
#include "base/error.h"

NIBBLE_EMBED(PublishedText, NIBBLE_PUBLISHED)

namespace nibble::cli {
namespace {

// The part of `text` up to a separator, which leaves `text` with it.
std::string_view TakeUntil(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

std::vector<PublishedFigure> ReadFigures() {
  std::vector<PublishedFigure> figures;
  std::string_view text = PublishedText();
  TakeUntil(text, '\n');  // names of the columns
  while (!text.empty()) {
    std::string_view line = TakeUntil(text, '\n');
    std::array<std::string_view, 6> cells;
    for (std::string_view& cell : cells) {
      NIBBLE_CHECK(!line.empty(), "published.tsv: line {} has too few cells", figures.size() + 2);
      cell = TakeUntil(line, '\t');
    }
    figures.push_back({cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]});
  }
  return figures;
}

}  // namespace

std::span<const PublishedFigure> PublishedFigures() {
  static const std::vector<PublishedFigure> figures = ReadFigures();
  return figures;
}

std::vector<std::string_view> PublishedModels() {
  std::vector<std::string_view> models;
  for (const PublishedFigure& f : PublishedFigures()) {
    if (std::ranges::find(models, f.model) == models.end()) models.push_back(f.model);
  }
  return models;
}

std::string_view PublishedValue(std::string_view section, std::string_view row,
                                std::string_view model, std::string_view measure) {
  for (const PublishedFigure& f : PublishedFigures()) {
    if (f.section == section && f.row == row && f.model == model && f.measure == measure) {
      return f.value;
    }
  }
  return {};
}

}  // namespace nibble::cli
