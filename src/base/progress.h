// SPDX-License-Identifier: Apache-2.0
// Progress of long work: whoever began it on this thread may receive it, nobody prints it here.
#pragma once

#include <chrono>
#include <string>
#include <vector>

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

// A job in stages: while it lives, ETAs of this thread's Progress are those of the whole job. Each
// Progress is the next stage of its title; stages without a Progress just take their time.
class ProgressJob {
 public:
  struct Stage {
    std::string title;
    double seconds = 0;  // expected
  };

  ProgressJob();
  ~ProgressJob();
  ProgressJob(const ProgressJob&) = delete;
  ProgressJob& operator=(const ProgressJob&) = delete;

  static ProgressJob* Current();  // of this thread, or null
  // Sets the stages, in the order they run, from now on.
  void Expect(std::vector<Stage> stages);

  // The stages up to `title`, one behind the last begun, count as done; an unknown one changes
  // nothing.
  void Begin(const std::string& title);
  // Seconds to the end of the job. `share` of the current stage is done, which by its own rate
  // takes `rest` seconds more. Expected seconds are scaled by what those that are over took.
  double Left(double share, double rest) const;

 private:
  using Clock = std::chrono::steady_clock;

  std::vector<Stage> stages_;
  size_t next_ = 0;   // behind the current stage
  double over_ = 0;   // expected seconds of the stages in front of the current one
  double total_ = 0;  // of all
  Clock::time_point start_;
  ProgressJob* before_;
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
