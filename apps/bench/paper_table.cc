// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/paper.h"
#include "apps/bench/published.h"
#include "measure/cublas_peer.h"

namespace nibble::cli {

double Contender::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2] / units;
}

void TakeTurns(const std::vector<Contender*>& contenders, int64_t repeats) {
  const auto seconds = [](const Contender& c, int64_t count) {
    cuda::CublasProduct::Wait();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) c.run();
    cuda::CublasProduct::Wait();
    return Seconds(start);
  };
  std::vector<int64_t> counts;
  for (Contender* c : contenders) {
    for (int i = 0; i < 3; ++i) c->run();  // the first runs record
    counts.push_back(1 + static_cast<int64_t>(5e-3 / seconds(*c, 1)));
  }
  for (int64_t turn = 0; turn < repeats; ++turn) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      const double time = seconds(*contenders[i], counts[i]);
      contenders[i]->seconds.push_back(time / static_cast<double>(counts[i]));
    }
  }
}

namespace {

// What the paper has of this line, which goes into `json`, too.
std::string_view AddPublished(const std::string& what, const std::string& shape, Json& json) {
  const std::string_view figure = PublishedSpeed(what, shape);
  if (!figure.empty()) json["published"] = figure;
  return figure;
}

}  // namespace

PaperTable::PaperTable(const Ceilings& ceilings) : ceilings_(ceilings) {
  json_.push_back(
      {{"name", "peak"}, {"tops", ceilings.operations / 1e12}, {"gbps", ceilings.bytes / 1e9}});
}

void PaperTable::Add(const std::string& what, const std::string& shape, const Work& work,
                     const Contender& nibble, const std::vector<const Contender*>& others) {
  const double time = nibble.median(), tops = work.operations / time / 1e12,
               gbps = work.bytes / time / 1e9;
  const double share =
      std::max(work.operations / ceilings_.operations, work.bytes / ceilings_.bytes) / time;
  std::vector<std::string> row = {what,
                                  shape,
                                  fmt::format("{:.1f}", time * 1e6),
                                  tops > 0 ? fmt::format("{:.0f}", tops) : "",
                                  gbps > 0 ? fmt::format("{:.0f}", gbps) : "",
                                  share > 0 ? fmt::format("{:.0f}", share * 100) : ""};
  Json json = {{"name", what}, {"shape", shape}, {"median_us", time * 1e6}};
  if (tops > 0) json["tops"] = tops;
  if (gbps > 0) json["gbps"] = gbps;
  if (share > 0) json["share_of_peak"] = share;
  std::string ratios;
  for (const Contender* other : others) {
    ratios += fmt::format("{}{:.2f} x {}", ratios.empty() ? "" : ", ", other->median() / time,
                          other->name);
    json[other->name + "_us"] = other->median() * 1e6;
    json["ratio_" + other->name] = other->median() / time;
  }
  row.push_back(ratios);
  row.emplace_back(AddPublished(what, shape, json));
  rows_.push_back(row);
  json_.push_back(json);
  Note("{:<24} {:<22} {:>9} us  {}\n", what, shape, row[2], ratios);
}

void PaperTable::AddMemory(const std::string& what, const std::string& shape, double bytes,
                           double bf16_bytes) {
  const double ratio = bf16_bytes / bytes;
  Json json = {{"name", what},
               {"shape", shape},
               {"bytes", bytes},
               {"bf16_bytes", bf16_bytes},
               {"ratio_bf16", ratio}};
  const std::string others =
      fmt::format("{:.1f} MB, {:.2f} x bf16 {:.1f} MB", bytes / 1e6, ratio, bf16_bytes / 1e6);
  const std::string_view published = AddPublished(what, shape, json);
  rows_.push_back({what, shape, "", "", "", "", others, std::string(published)});
  json_.push_back(json);
}

void PaperTable::Print(bool json) const {
  if (json) return PrintJson(json_);
  fmt::print(
      "{}100 % of peak: {:.0f} TOPS (cuBLASLt s8), {:.0f} GB/s read\n"
      "paper: fp16 / QuaRot of its Tables 14 to 17, on an RTX 3090 with W4A4; Atom on an RTX 4090, "
      "% of whose 660.6 TOPS of 8 bits\n",
      Table(rows_), ceilings_.operations / 1e12, ceilings_.bytes / 1e9);
}

}  // namespace nibble::cli
