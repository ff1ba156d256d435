// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/quality_report.h"

#include <algorithm>

#include "apps/bench/published.h"

namespace nibble::cli {
namespace {

std::string Number(double value, int digits) {
  return value > 0 ? fmt::format("{:.{}f}", value, digits) : "";
}

std::string MarkdownRow(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

// A column of accuracies: a task, or "average" of all that were asked.
std::vector<std::string> AccuracyColumns(const QualityReport& report, const PaperSection& section) {
  if (!section.tasks) return {};
  std::vector<std::string> columns = report.tasks;
  if (columns.size() > 1) columns.emplace_back("average");
  return columns;
}

double Accuracy(const QualityResult& result, const std::string& column) {
  if (column != "average") return result.accuracies.at(column);
  double sum = 0;
  for (const auto& [task, accuracy] : result.accuracies) sum += accuracy;
  return sum / static_cast<double>(result.accuracies.size());
}

// What the papers publish of a section for the report's model, in order of appearance.
std::vector<std::string_view> Measures(const QualityReport& report, const PaperSection& section) {
  std::vector<std::string_view> measures;
  for (const PublishedFigure& f : PublishedFigures()) {
    if (f.section == section.name && f.model == report.published &&
        std::ranges::count(measures, f.measure) == 0) {
      measures.push_back(f.measure);
    }
  }
  return measures;
}

std::vector<std::string> Header(const QualityReport& report, const PaperSection& section) {
  std::vector<std::string> header = {"row",        "arguments",   "formats", "bits per weight",
                                     "perplexity", "gap to fp32", "seconds"};
  for (const std::string& column : AccuracyColumns(report, section)) {
    header.push_back(column + " %");
  }
  for (const std::string_view measure : Measures(report, section)) {
    header.push_back(fmt::format("{}, published: {}", report.published, measure));
  }
  return header;
}

std::vector<std::string> LineCells(const QualityReport& report, const QualityLine& line) {
  const PaperRow& row = *line.row;
  std::vector<std::string> cells = {
      std::string(row.name), row.recipe.empty() ? "" : fmt::format("`{}`", RowArguments(row))};
  const QualityResult* const r = line.result;
  if (r != nullptr) {
    cells.insert(cells.end(), {r->formats, Number(r->bits_per_weight, 2), Number(r->perplexity, 3),
                               fmt::format("{:+.3f}", r->perplexity - report.perplexity),
                               Number(r->quantize_seconds + r->eval_seconds, 0)});
  } else {
    cells.insert(cells.end(), {"", "", line.skipped, "", ""});
  }
  for (const std::string& column : AccuracyColumns(report, *line.section)) {
    cells.push_back(r == nullptr ? "" : Number(100 * Accuracy(*r, column), 1));
  }
  for (const std::string_view measure : Measures(report, *line.section)) {
    cells.emplace_back(PublishedValue(line.section->name, row.name, report.published, measure));
  }
  return cells;
}

Json LineJson(const QualityReport& report, const QualityLine& line) {
  const PaperRow& row = *line.row;
  Json json = {
      {"section", line.section->name}, {"name", row.name}, {"arguments", RowArguments(row)}};
  if (line.result != nullptr) {
    const QualityResult& r = *line.result;
    json["formats"] = r.formats;
    if (r.bits_per_weight > 0) json["bits_per_weight"] = r.bits_per_weight;
    json["perplexity"] = r.perplexity;
    json["gap"] = r.perplexity - report.perplexity;
    json["quantize_seconds"] = r.quantize_seconds;
    json["eval_seconds"] = r.eval_seconds;
    if (line.section->tasks) json["accuracies"] = r.accuracies;
  } else {
    json["skipped"] = line.skipped;
  }
  for (const PublishedFigure& f : PublishedFigures()) {
    if (f.section != line.section->name || f.row != row.name) continue;
    Json& value = json["published"][std::string(f.model)][std::string(f.measure)];
    value = Json::accept(f.value) ? Json::parse(f.value) : Json(f.value);  // some are "Inf"
  }
  return json;
}

}  // namespace

std::string Markdown(const QualityReport& report) {
  std::string text;
  for (const auto& [name, value] : report.settings.items()) {
    text += fmt::format("- {}: {}\n", name,
                        value.is_string() ? value.get<std::string>() : value.dump());
  }
  const PaperSection* section = nullptr;
  for (const QualityLine& line : report.lines) {
    if (line.section != section) {
      section = line.section;
      const std::vector<std::string> header = Header(report, *section);
      text += fmt::format("\n## {}\n\n", section->title) + MarkdownRow(header) +
              MarkdownRow(std::vector<std::string>(header.size(), "---"));
    }
    text += MarkdownRow(LineCells(report, line));
  }
  return text;
}

Json ToJson(const QualityReport& report) {
  Json json = report.settings;
  if (report.perplexity > 0) json["fp32_perplexity"] = report.perplexity;
  json["rows"] = Json::array();
  for (const QualityLine& line : report.lines) json["rows"].push_back(LineJson(report, line));
  return json;
}

}  // namespace nibble::cli
