// SPDX-License-Identifier: Apache-2.0
// Every step must do what launching it would do now. Memory is imitated: a graph holds what its
// launches named, and must not be played when that has moved.
#include "backends/cuda/runtime/recordings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

namespace nibble::cuda {
namespace {

enum class Did { kLaunched, kRecorded, kPlayed };

struct FakeGraph {
  std::shared_ptr<const int> holds;  // null: none
  explicit operator bool() const { return holds != nullptr; }
};

class RecordingsTest : public testing::Test {
 protected:
  Did Run(const RecordingKey& key) {
    Did did = Did::kLaunched;
    recordings_.Run(key, frees_,
                    {.launch = [&] { result_ = memory_; },
                     .record =
                         [&] {
                           did = Did::kRecorded;
                           return FakeGraph{std::make_shared<int>(memory_)};
                         },
                     .replay =
                         [&](const FakeGraph& graph) {
                           if (did == Did::kLaunched) did = Did::kPlayed;
                           alive_ = graph.holds;
                           result_ = *graph.holds;
                         }});
    EXPECT_EQ(result_, memory_);
    return did;
  }
  void Move() { ++memory_, ++frees_; }

  uint64_t frees_ = 7;
  int memory_ = 1, result_ = 0;  // where it lies; where the last step found it
  std::weak_ptr<const int> alive_;
  Recordings<FakeGraph> recordings_;
};

TEST_F(RecordingsTest, LaunchesThenRecordsThenPlays) {
  const RecordingKey key = {.ops = 1, .sequences = 2, .rows = 2, .context = 1024};
  EXPECT_EQ(Run(key), Did::kLaunched);
  EXPECT_EQ(Run(key), Did::kRecorded);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Run(key), Did::kPlayed);
}

TEST_F(RecordingsTest, EveryPartOfTheKeyCounts) {
  const RecordingKey key = {.ops = 1, .sequences = 2, .rows = 2, .context = 1024};
  Run(key), Run(key);
  const auto with = [&](auto member) {
    RecordingKey other = key;
    ++(other.*member);
    return other;
  };
  EXPECT_EQ(Run(with(&RecordingKey::ops)), Did::kLaunched);
  for (const auto member : {&RecordingKey::sequences, &RecordingKey::rows, &RecordingKey::context,
                            &RecordingKey::offset}) {
    EXPECT_EQ(Run(with(member)), Did::kLaunched);
  }
  EXPECT_EQ(Run(key), Did::kPlayed);
}

TEST_F(RecordingsTest, WhatWasFreedIsNotPlayed) {
  const RecordingKey a = {.ops = 1}, b = {.ops = 2};
  Run(a), Run(a), Run(b), Run(b);
  Move();
  EXPECT_EQ(Run(a), Did::kLaunched);
  EXPECT_TRUE(alive_.expired());  // graphs that no step plays any more take no memory
  EXPECT_EQ(Run(b), Did::kLaunched);
  EXPECT_EQ(Run(a), Did::kRecorded);
  EXPECT_EQ(Run(b), Did::kRecorded);
}

TEST_F(RecordingsTest, AStepThatMovesMemoryItselfIsLaunchedAgain) {
  const RecordingKey key = {.ops = 1};
  recordings_.Run(key, frees_, {.launch = [&] { Move(); }, .record = {}, .replay = {}});
  EXPECT_EQ(Run(key), Did::kLaunched);
  EXPECT_EQ(Run(key), Did::kRecorded);
}

TEST_F(RecordingsTest, AStepThatFailedIsLaunchedAgain) {
  const RecordingKey key = {.ops = 1};
  const auto fail = [] { throw std::runtime_error("no memory"); };
  EXPECT_THROW(recordings_.Run(key, frees_, {.launch = fail, .record = {}, .replay = {}}),
               std::runtime_error);
  EXPECT_EQ(Run(key), Did::kLaunched);
  const auto no_graph = []() -> FakeGraph { throw std::runtime_error("no memory"); };
  EXPECT_THROW(recordings_.Run(key, frees_, {.launch = {}, .record = no_graph, .replay = {}}),
               std::runtime_error);
  EXPECT_EQ(Run(key), Did::kRecorded);
}

TEST_F(RecordingsTest, KeepsFewGraphs) {
  std::vector<std::weak_ptr<const int>> graphs;
  for (uint64_t ops = 1; ops <= 1000; ++ops) {
    Run({.ops = ops});
    EXPECT_EQ(Run({.ops = ops}), Did::kRecorded);
    graphs.push_back(alive_);
  }
  EXPECT_LE(std::ranges::count_if(graphs, [](const auto& g) { return !g.expired(); }), 32);
}

}  // namespace
}  // namespace nibble::cuda
