// SPDX-License-Identifier: Apache-2.0
// A load on the scheduler of `nibble serve`: streams, each of which asks one request after the
// other, as in Atom's serving measurements (Zhao et al. 2023).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/model.h"
#include "schedule/scheduler.h"

namespace nibble::cli {

struct Errand {  // tokens
  int64_t prompt, answer;
};

// Lengths whose logarithms are uniform: prompts of 32 tokens and more, answers of 16 and more, up
// to `longest` and to half of the context. The first errands are the same for any count.
std::vector<Errand> DrawErrands(int64_t count, Errand longest, int64_t context);
// The tokens of the longest one.
int64_t LongestText(const std::vector<Errand>& errands);

struct ServeLoad {
  int64_t streams = 1;
  std::vector<Errand> errands;  // in the order in which they are asked
  // Streams go on with the first errand behind the last one, so that none is idle while others
  // write, until as many answers as there are errands have ended. What comes before as many answers
  // have begun as are under way does not count: all streams ask at once then. It takes as long as
  // `seconds` at most.
  bool endless = false;
  double seconds = 0;  // that count, at most; 0: any number
};

struct LoadOutcome {
  double seconds = 0;
  int64_t written = 0, read = 0, answered = 0;  // tokens, tokens of prompts, answers
  int64_t preemptions = 0;
  int64_t most_running = 0, most_pages = 0;       // at once, from the beginning on
  std::vector<double> answer_steps, mixed_steps;  // seconds each; the latter have prompts, too
  std::vector<double> first_token;                // seconds since it was asked
  std::vector<double> between_tokens;             // seconds, of all answers

  double written_per_second() const { return static_cast<double>(written) / seconds; }
  double read_per_second() const { return static_cast<double>(read) / seconds; }
};

// Tokens are random. `tell`, if any, sees the outcome so far behind every step. Throws if an answer
// fails, or if one could never run in the options' pages.
LoadOutcome RunLoad(Model& model, const ServeLoad& load, const SchedulerOptions& options,
                    const std::function<void(const LoadOutcome&)>& tell = {});

// The value that a share of all values is below; 0 where there are none.
double Quantile(std::vector<double> values, double share);

}  // namespace nibble::cli
