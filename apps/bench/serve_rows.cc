// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/serve_rows.h"

#include <algorithm>

#include "apps/bench/published.h"
#include "apps/cli/cli.h"
#include "base/progress.h"

namespace nibble::cli {
namespace {

constexpr std::string_view kPaperModel = "llama-7b in 24 GB", kPaperBits = "W4A4KV4";
constexpr std::string_view kColumns[] = {"format",   "bits",    "streams",  "tokens/s",
                                         "ms/token", "99 %",    "first ms", "at once",
                                         "answered", "weights", "cache",    "x 16 bits"};
constexpr size_t kNames = 2;  // columns of text, left-aligned

std::string Number(double value, int digits) {
  return value > 0 ? fmt::format("{:.{}f}", value, digits) : "";
}

}  // namespace

ServedRows::ServedRows(const std::vector<ServedFormat>& formats, bool json)
    : formats_(formats), json_(json) {
  constexpr size_t kFigure = 8;  // "130.0 MB"
  for (const std::string_view column : kColumns) {
    widths_.push_back(std::max(column.size(), kFigure));
  }
  for (const ServedFormat& format : formats) {
    widths_[0] = std::max(widths_[0], format.name.size());
    widths_[1] = std::max(widths_[1], format.bits.size());
  }
}

void ServedRows::Show(const std::string& line) const {
  if (json_) return Note("{}", line);
  fmt::print("{}", line);
  FlushOutput();
}

std::string ServedRows::Line(const std::vector<std::string>& cells) const {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    line += i < kNames ? fmt::format("{:<{}}  ", cells[i], widths_[i])
                       : fmt::format("{:>{}}  ", cells[i], widths_[i]);
  }
  return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

void ServedRows::PrintHeader(const std::string& title) const {
  Show(title + "\n");
  Show(Line({std::begin(kColumns), std::end(kColumns)}));
}

void ServedRows::Add(ServedRow row) {
  rows_.push_back(std::move(row));
  const ServedRow& r = rows_.back();
  std::vector<std::string> cells = {r.format->name, r.format->bits,
                                    r.streams > 0 ? std::to_string(r.streams) : "all"};
  if (!r.problem.empty()) {
    cells.push_back(r.problem);
    return Show(Line(cells));
  }
  const std::vector<std::string> figures = {
      Number(r.tokens_per_second, 1), Number(r.between_ms, 1),        Number(r.between_99_ms, 1),
      Number(r.first_ms, 0),          std::to_string(r.most_running), std::to_string(r.answered),
      BytesText(r.weight_bytes),      BytesText(r.cache_bytes),       Number(RatioToWide(r), 2)};
  cells.insert(cells.end(), figures.begin(), figures.end());
  Show(Line(cells));
}

// To the row of 16 bits with as many streams.
double ServedRows::RatioToWide(const ServedRow& row) const {
  const auto wide = std::ranges::find_if(rows_, [&](const ServedRow& r) {
    return r.format->wide() && r.streams == row.streams && r.tokens_per_second > 0;
  });
  return wide == rows_.end() ? 0 : row.tokens_per_second / wide->tokens_per_second;
}

// The row with the most tokens a second of the formats that `belongs` takes, or null.
template <typename Belongs>
const ServedRow* ServedRows::Best(const Belongs& belongs) const {
  const ServedRow* best = nullptr;
  for (const ServedRow& r : rows_) {
    if (!belongs(*r.format) || r.tokens_per_second == 0) continue;
    if (best == nullptr || r.tokens_per_second > best->tokens_per_second) best = &r;
  }
  return best;
}

Json ServedRows::SummaryJson() const {
  const ServedRow* wide = Best([](const ServedFormat& f) { return f.wide(); });
  const ServedRow* four = Best([](const ServedFormat& f) { return f.bits == kPaperBits; });
  Json summary = Json::array();
  for (const ServedFormat& format : formats_) {
    const ServedRow* best = Best([&](const ServedFormat& f) { return &f == &format; });
    if (best == nullptr) continue;
    const double most = best->tokens_per_second;
    summary.push_back({{"format", format.name},
                       {"bits", format.bits},
                       {"streams", best->streams},
                       {"tokens_per_second", most}});
    Json& json = summary.back();
    if (wide != nullptr) json["ratio_to_16_bits"] = most / wide->tokens_per_second;
    if (four == nullptr || format.bits == kPaperBits) continue;
    json["w4a4_ratio_to_it"] = four->tokens_per_second / most;
    const std::string_view published =
        PublishedSpeed(fmt::format("{} / {}", kPaperBits, format.bits), kPaperModel);
    if (!published.empty()) json["published_w4a4_ratio_to_it"] = published;
  }
  return summary;
}

void ServedRows::PrintSummary() const {
  std::vector<std::vector<std::string>> table = {
      {"format", "bits", "most tokens/s", "streams", "x 16 bits", "W4A4 / it", "paper"}};
  for (const Json& s : SummaryJson()) {
    table.push_back(
        {s["format"], s["bits"], Number(s["tokens_per_second"], 1),
         std::to_string(s["streams"].get<int64_t>()), Number(s.value("ratio_to_16_bits", 0.0), 2),
         Number(s.value("w4a4_ratio_to_it", 0.0), 2), s.value("published_w4a4_ratio_to_it", "")});
  }
  fmt::print("\n{}paper: Atom's {} / it, {} on an RTX 4090, requests of ShareGPT\n", Table(table),
             kPaperBits, kPaperModel);
}

Json ServedRows::RowJson(const ServedRow& r) const {
  Json json = {{"format", r.format->name}, {"bits", r.format->bits}};
  if (r.streams > 0) json["streams"] = r.streams;
  if (r.weight_bytes > 0) json["weight_bytes"] = r.weight_bytes;
  if (!r.problem.empty()) {
    json["problem"] = r.problem;
    return json;
  }
  json.update({{"cache_bytes", r.cache_bytes},
               {"most_cache_bytes", r.most_cache_bytes},
               {"tokens_per_second", r.tokens_per_second},
               {"read_per_second", r.read_per_second},
               {"between_tokens_ms", r.between_ms},
               {"between_tokens_99_ms", r.between_99_ms},
               {"most_running", r.most_running},
               {"answered", r.answered},
               {"seconds", r.seconds},
               {"preemptions", r.preemptions}});
  if (r.first_ms > 0) {  // else no answer began while the row counted
    json.update({{"first_token_ms", r.first_ms}, {"first_token_99_ms", r.first_99_ms}});
  }
  const double ratio = RatioToWide(r);
  if (ratio > 0) json["ratio_to_16_bits"] = ratio;
  return json;
}

Json ServedRows::RowsJson() const {
  Json rows = Json::array();
  for (const ServedRow& row : rows_) rows.push_back(RowJson(row));
  return rows;
}

}  // namespace nibble::cli
