// SPDX-License-Identifier: Apache-2.0
// Statistics of a scheduler, in the terms of vLLM's metrics and with their bounds.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1) {}
  void Add(double value) {
    ++counts_[static_cast<size_t>(std::ranges::lower_bound(bounds_, value) - bounds_.begin())];
    sum_ += value;
  }
  std::span<const double> bounds() const { return bounds_; }       // upper ones, included
  const std::vector<uint64_t>& counts() const { return counts_; }  // the last one is beyond all
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

inline constexpr auto kFirstTokenBounds =
    std::to_array({.001, .005, .01, .02, .04, .06, .08, .1,  .25,  .5,   .75,
                   1.,   2.5,  5.,  7.5, 10., 20., 40., 80., 160., 640., 2560.});
inline constexpr auto kBetweenTokensBounds = std::to_array(
    {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1., 2.5, 5., 7.5, 10., 20., 40., 80.});
inline constexpr auto kRequestBounds =
    std::to_array({.3,  .5,  .8,  1.,  1.5,  2.,   2.5,  5.,   10.,   15.,  20.,
                   30., 40., 50., 60., 120., 240., 480., 960., 1920., 7680.});
inline constexpr auto kTokenBounds =
    std::to_array({1., 2., 5., 10., 20., 50., 100., 200., 500., 1000., 2000., 5000., 10000., 20000.,
                   50000., 100000.});

struct SchedulerStats {
  int64_t running = 0, waiting = 0;     // answers
  int64_t pages = 0, pages_in_use = 0;  // those kept for their prefixes not counted
  int64_t pages_kept = 0;
  uint64_t prompt_tokens = 0, written_tokens = 0;
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens
  uint64_t preemptions = 0;
  std::array<uint64_t, 4> ended{};  // by End
  // Seconds, on a clock that only goes forward.
  Histogram first_token{kFirstTokenBounds}, between_tokens{kBetweenTokensBounds};
  Histogram whole{kRequestBounds}, queued{kRequestBounds}, prefill{kRequestBounds},
      decode{kRequestBounds};
  Histogram request_prompt{kTokenBounds}, request_written{kTokenBounds};
};

}  // namespace nibble
