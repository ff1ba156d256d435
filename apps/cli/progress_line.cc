// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/progress_line.h"

#include <unistd.h>

#include <chrono>

#include "base/json.h"
#include "base/progress.h"

namespace nibble::cli {
namespace {

constexpr std::chrono::seconds kPause(5);  // of lines that are kept

std::string RateText(double rate) {
  return rate < 10 ? fmt::format("{:.2g}", rate) : fmt::format("{:.0f}", rate);
}

std::string LineText(const ProgressState& p) {
  const std::string rest =
      p.rate > 0 ? fmt::format(", {} {}/s, ETA {}", RateText(p.rate), p.unit, DurationText(p.eta))
                 : "";
  return fmt::format("{} {:3.0f} %{}{}{}", p.title, p.total > 0 ? 100 * p.done / p.total : 0,
                     p.detail.empty() ? "" : ", ", p.detail, rest);
}

}  // namespace

ProgressCallback ProgressLine() {
  using Clock = std::chrono::steady_clock;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  return [terminal, title = std::string(),
          next = Clock::time_point()](const ProgressState& p) mutable {
    if (terminal) return p.ended ? Note("\r\033[K") : Note("\r\033[K{}", LineText(p));
    if (p.ended) return title.clear();
    if (p.title == title && Clock::now() < next) return;
    title = p.title;
    next = Clock::now() + kPause;
    Note("{}\n", LineText(p));
  };
}

ProgressCallback ProgressJson() {
  return [](const ProgressState& p) {
    if (p.ended) return;
    const Json line = {{"progress", p.title}, {"done", p.done},     {"total", p.total},
                       {"unit", p.unit},      {"detail", p.detail}, {"rate_per_s", p.rate},
                       {"eta_s", p.eta}};
    Note("{}\n", line.dump());
  };
}

}  // namespace nibble::cli
