// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/quality_report.h"

namespace nibble::cli {
namespace {

std::string Number(double value, int digits) {
  return value > 0 ? fmt::format("{:.{}f}", value, digits) : "";
}

std::string MarkdownRow(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::vector<std::string> Header(const QualityReport& report, const PaperSection& section) {
  std::vector<std::string> header = {"row",        "arguments",   "formats", "bits per weight",
                                     "perplexity", "gap to fp32", "seconds"};
  if (section.tasks) {
    for (const std::string& task : report.tasks) header.push_back(task + " %");
  }
  if (report.published) {
    header.push_back(fmt::format("published, {}", kPublishedModels[*report.published]));
  }
  return header;
}

std::vector<std::string> LineCells(const QualityReport& report, const QualityLine& line) {
  const PaperRow& row = *line.row;
  std::vector<std::string> cells = {
      std::string(row.name), row.recipe.empty() ? "" : fmt::format("`{}`", RowArguments(row))};
  const size_t accuracies = line.section->tasks ? report.tasks.size() : 0;
  if (line.result != nullptr) {
    const QualityResult& r = *line.result;
    cells.insert(cells.end(), {r.formats, Number(r.bits_per_weight, 2), Number(r.perplexity, 3),
                               fmt::format("{:+.3f}", r.perplexity - report.perplexity),
                               Number(r.quantize_seconds + r.eval_seconds, 0)});
    for (size_t i = 0; i < accuracies; ++i) {
      cells.push_back(Number(100 * r.accuracies.at(report.tasks[i]), 1));
    }
  } else {
    cells.insert(cells.end(), {"", "", line.skipped, "", ""});
    cells.insert(cells.end(), accuracies, "");
  }
  if (report.published) cells.push_back(std::string(row.published[*report.published]));
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
  for (size_t i = 0; i < kPublishedModels.size(); ++i) {
    if (row.published[i].empty()) continue;
    json["published"][kPublishedModels[i]] = ParseJson(row.published[i], "published");
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
