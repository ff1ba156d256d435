// SPDX-License-Identifier: Apache-2.0
// Progress of long work on standard error: one line with rate and ETA, rewritten in place on a
// terminal, printed every few seconds otherwise; or one JSON object per update.
#pragma once

#include <chrono>
#include <string>

namespace nibble {

enum class ProgressStyle { kText, kJson, kNone };
void SetProgressStyle(ProgressStyle style);  // once at start-up; kText by default

class Progress {
 public:
  // `unit` names what is counted ("tokens"); `total` may be refined later by Update.
  Progress(std::string title, std::string unit, double total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total is finished; `detail` says what is being worked on.
  void Update(double done, const std::string& detail = "");

 private:
  using Clock = std::chrono::steady_clock;
  void Print(double done, const std::string& detail);

  std::string title_, unit_;
  double total_;
  double first_done_ = -1;  // work found finished at the start (resume) does not count for the rate
  Clock::time_point start_, last_;
  bool printed_ = false;
};

// "45 s", "3 min 20 s", "2 h 5 min".
std::string DurationText(double seconds);
// "1.2 GB", "820.0 kB" (decimal).
std::string BytesText(double bytes);

}  // namespace nibble
