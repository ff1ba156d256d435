// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/published.h"

#include <algorithm>
#include <array>

#include "base/embedded.h"
#include "base/error.h"

NIBBLE_EMBED(PublishedText, NIBBLE_BENCH_FOLDER "/published.tsv")
NIBBLE_EMBED(PublishedSpeeds, NIBBLE_BENCH_FOLDER "/speeds.tsv")

namespace nibble::cli {
namespace {

// The part of `text` up to a separator, which leaves `text` with it.
std::string_view TakeUntil(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

// The rows of a table behind the one with names.
template <size_t kColumns>
std::vector<std::array<std::string_view, kColumns>> Rows(std::string_view text) {
  std::vector<std::array<std::string_view, kColumns>> rows;
  TakeUntil(text, '\n');
  while (!text.empty()) {
    std::string_view line = TakeUntil(text, '\n');
    for (std::string_view& cell : rows.emplace_back()) {
      NIBBLE_CHECK(!line.empty(), "line {} has too few cells", rows.size() + 1);
      cell = TakeUntil(line, '\t');
    }
  }
  return rows;
}

std::vector<PublishedFigure> ReadFigures() {
  std::vector<PublishedFigure> figures;
  for (const auto& c : Rows<6>(PublishedText())) {
    figures.push_back({c[0], c[1], c[2], c[3], c[4], c[5]});
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

std::string_view PublishedSpeed(std::string_view what, std::string_view shape) {
  static const auto rows = Rows<4>(PublishedSpeeds());
  const auto found = std::ranges::find_if(
      rows, [&](const auto& row) { return row[1] == what && row[2] == shape; });
  return found == rows.end() ? std::string_view() : (*found)[3];
}

}  // namespace nibble::cli
