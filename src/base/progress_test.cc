// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <gtest/gtest.h>

#include <thread>

namespace nibble {
namespace {

TEST(ProgressJob, ItsEtaIsThatOfAllStages) {
  ProgressJob job;
  job.Expect({{"read", 100}, {"check", 50}, {"round", 300}, {"round", 50}});
  job.Begin("read");
  EXPECT_NEAR(job.Left(0, 0), 500, 5);  // nothing was measured yet
  job.Begin("unknown");
  EXPECT_NEAR(job.Left(0, 0), 500, 5);
  job.Begin("round");  // quick so far: the time is that of a far faster machine
  EXPECT_LT(job.Left(0, 0), 200);
  EXPECT_NEAR(job.Left(1, 0), job.Left(0, 0) / 350 * 50, 50);
  job.Begin("round");
  EXPECT_LT(job.Left(0, 0), 20);
  EXPECT_NEAR(job.Left(1, 0), 0, 1e-9);
}

TEST(ProgressJob, LaterStagesTakeLongerWhereEarlierOnesDid) {
  ProgressJob job;
  job.Expect({{"read", 0.01}, {"round", 0.1}});
  job.Begin("read");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  job.Begin("round");
  EXPECT_GT(job.Left(0, 0), 0.25);
  // Half done, it goes as much by the rate of the stage itself.
  EXPECT_LT(job.Left(0.5, 0), job.Left(0.5, 0.1));
}

TEST(ProgressJob, ProgressReportsIt) {
  std::vector<ProgressState> states;
  const ProgressReceiver receiver([&](const ProgressState& state) { states.push_back(state); });
  ProgressJob job;
  job.Expect({{"read", 100}, {"round", 300}});
  Progress("read", "bytes", 10).Update(0);
  EXPECT_NEAR(states.at(0).eta, 400, 5);
  {
    ProgressJob inner;  // as of a job inside another; it expects nothing
    Progress("round", "layers", 10).Update(0);
    EXPECT_EQ(states.at(2).eta, 0);
  }
  Progress("round", "layers", 10).Update(0);
  EXPECT_LT(states.at(4).eta, 300);
}

}  // namespace
}  // namespace nibble
