// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nibble {
namespace {

thread_local const ProgressReceiver* receiver = nullptr;
thread_local ProgressJob* current_job = nullptr;

double Seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

ProgressReceiver::ProgressReceiver(ProgressCallback callback)
    : callback_(std::move(callback)), before_(std::exchange(receiver, this)) {}

ProgressReceiver::~ProgressReceiver() {
  receiver = before_;
}

ProgressJob::ProgressJob() : start_(Clock::now()), before_(std::exchange(current_job, this)) {}

ProgressJob::~ProgressJob() {
  current_job = before_;
}

ProgressJob* ProgressJob::Current() {
  return current_job;
}

void ProgressJob::Expect(std::vector<Stage> stages) {
  stages_ = std::move(stages);
  next_ = 0;
  over_ = total_ = 0;
  for (const Stage& stage : stages_) total_ += stage.seconds;
  start_ = Clock::now();
}

void ProgressJob::Begin(const std::string& title) {
  const auto first = stages_.begin() + static_cast<std::ptrdiff_t>(next_);
  const auto found = std::ranges::find(first, stages_.end(), title, &Stage::title);
  if (found == stages_.end()) return;
  over_ = 0;
  for (auto stage = stages_.begin(); stage != found; ++stage) over_ += stage->seconds;
  next_ = static_cast<size_t>(found - stages_.begin()) + 1;
}

double ProgressJob::Left(double share, double rest) const {
  if (next_ == 0 || total_ <= 0) return rest;
  constexpr double kTrust = 0.1;  // in expectations, as a share of the job that they were right for
  const double own = stages_[next_ - 1].seconds;
  const double trusted = kTrust * total_, done = over_ + share * own;
  const double scale = (Seconds(Clock::now() - start_) + trusted) / (done + trusted);
  // The more of a stage is over, the more its rate tells.
  const double expected = scale * (1 - share) * own;
  return share * rest + (1 - share) * expected + scale * (total_ - over_ - own);
}

Progress::Progress(std::string title, std::string unit, double total)
    : state_{.title = std::move(title), .unit = std::move(unit), .total = total},
      start_(Clock::now()) {
  if (current_job != nullptr) current_job->Begin(state_.title);
}

Progress::~Progress() {
  if (!told_ || receiver == nullptr) return;
  state_.ended = true;
  try {
    receiver->callback_(state_);
  } catch (...) {  // it may be an exception that ends this
  }
}

void Progress::Update(double done, const std::string& detail) {
  constexpr double kPause = 0.2;  // seconds
  const auto now = Clock::now();
  if (first_done_ < 0) first_done_ = done;
  if (receiver == nullptr || !receiver->callback_ || (told_ && Seconds(now - last_) < kPause))
    return;
  last_ = now;
  told_ = true;
  const double elapsed = Seconds(now - start_);
  state_.done = done;
  state_.detail = detail;
  state_.rate = elapsed > 0 ? (done - first_done_) / elapsed : 0;
  state_.eta = state_.rate > 0 ? (state_.total - done) / state_.rate : 0;
  if (current_job != nullptr && state_.total > 0) {
    state_.eta = current_job->Left(done / state_.total, state_.eta);
  }
  receiver->callback_(state_);
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
