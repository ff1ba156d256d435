// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/json.h"

namespace nibble {
namespace {

ProgressStyle style = ProgressStyle::kText;

bool Terminal() {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  return terminal;
}

double Seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

std::string RateText(double rate) {
  return rate < 10 ? fmt::format("{:.2g}", rate) : fmt::format("{:.0f}", rate);
}

}  // namespace

void SetProgressStyle(ProgressStyle s) {
  style = s;
}

Progress::Progress(std::string title, std::string unit, double total)
    : title_(std::move(title)), unit_(std::move(unit)), total_(total), start_(Clock::now()) {}

Progress::~Progress() {
  if (printed_ && style == ProgressStyle::kText && Terminal()) Note("\r\033[K");
}

void Progress::Update(double done, const std::string& detail) {
  const auto now = Clock::now();
  if (first_done_ < 0) first_done_ = done;
  const double pause = style == ProgressStyle::kText && !Terminal() ? 5.0 : 0.2;
  if (style == ProgressStyle::kNone || (printed_ && Seconds(now - last_) < pause)) return;
  last_ = now;
  Print(done, detail);
  printed_ = true;
}

void Progress::Print(double done, const std::string& detail) {
  const double elapsed = Seconds(last_ - start_);
  const double rate = elapsed > 0 ? (done - first_done_) / elapsed : 0;
  const double eta = rate > 0 ? (total_ - done) / rate : 0;
  if (style == ProgressStyle::kJson) {
    const Json line = {{"progress", title_}, {"done", done},     {"total", total_},
                       {"unit", unit_},      {"detail", detail}, {"rate_per_s", rate},
                       {"eta_s", eta}};
    Note("{}\n", line.dump());
    return;
  }
  const std::string rest =
      rate > 0 ? fmt::format(", {} {}/s, ETA {}", RateText(rate), unit_, DurationText(eta)) : "";
  const std::string line =
      fmt::format("{} {:3.0f} %{}{}{}", title_, total_ > 0 ? 100 * done / total_ : 0,
                  detail.empty() ? "" : ", ", detail, rest);
  Note("{}{}", Terminal() ? "\r\033[K" : "", line);
  if (!Terminal()) Note("\n");
}

std::string DurationText(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
}

std::string BytesText(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 999.95 && unit < 4) bytes /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

}  // namespace nibble
