// SPDX-License-Identifier: Apache-2.0
// Progress of long work: whoever began it on this thread may receive it, nobody prints it here.
#pragma once

#include <chrono>
#include <string>

#include "nibble/progress.h"

namespace nibble {

// While it lives, this thread's progress goes to `callback`.
class ProgressReceiver {
 public:
  explicit ProgressReceiver(ProgressCallback callback);
  ~ProgressReceiver();
  ProgressReceiver(const ProgressReceiver&) = delete;
  ProgressReceiver& operator=(const ProgressReceiver&) = delete;

 private:
  friend class Progress;
  ProgressCallback callback_;
  const ProgressReceiver* before_;
};

class Progress {
 public:
  // `unit` names what is counted ("tokens").
  Progress(std::string title, std::string unit, double total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total is finished; `detail` says what is being worked on.
  void Update(double done, const std::string& detail = "");

 private:
  using Clock = std::chrono::steady_clock;

  ProgressState state_;
  double first_done_ = -1;  // work found finished at the start (resume) does not count for the rate
  Clock::time_point start_, last_;
  bool told_ = false;
};

// "45 s", "3 min 20 s", "2 h 5 min".
std::string DurationText(double seconds);
// "1.2 GB", "820.0 kB" (decimal).
std::string BytesText(double bytes);

}  // namespace nibble
