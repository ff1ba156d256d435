// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/serve_load.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/rng.h"

namespace nibble::cli {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Many short ones, a few long ones.
int64_t DrawLength(Rng& rng, int64_t min, int64_t max) {
  const double ratio = static_cast<double>(max) / static_cast<double>(min);
  return static_cast<int64_t>(static_cast<double>(min) * std::pow(ratio, rng.Uniform()));
}

// A token without text: what is measured is the model, not its words.
Tokenizer NoText() {
  return Tokenizer::Parse(
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []})",
      "bench");
}

GenerationRequest RequestOf(const Errand& errand, int64_t seed, int64_t vocabulary) {
  Rng rng(static_cast<uint64_t>(seed));
  GenerationRequest request = {.max_tokens = errand.answer};
  for (int64_t i = 0; i < errand.prompt; ++i) {
    request.prompt.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocabulary))));
  }
  return request;
}

}  // namespace

std::vector<Errand> DrawErrands(int64_t count, Errand longest, int64_t context) {
  Rng rng(1);
  std::vector<Errand> errands;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t prompt = DrawLength(rng, 32, std::min(longest.prompt, context / 2));
    errands.push_back({prompt, DrawLength(rng, 16, std::min(longest.answer, context / 2))});
  }
  return errands;
}

int64_t LongestText(const std::vector<Errand>& errands) {
  int64_t longest = 0;
  for (const Errand& errand : errands) longest = std::max(longest, errand.prompt + errand.answer);
  return longest;
}

LoadOutcome RunLoad(Model& model, const ServeLoad& load, const SchedulerOptions& options,
                    const std::function<void(const LoadOutcome&)>& tell) {
  const auto count = static_cast<int64_t>(load.errands.size());
  const Tokenizer tokenizer = NoText();
  LoadOutcome outcome;
  std::string problem;
  int64_t asked = 0;
  Scheduler scheduler(model, tokenizer, nullptr, options);
  const std::function<void()> ask = [&] {
    if (asked == count && !load.endless) return;
    const Errand& errand = load.errands[static_cast<size_t>(asked++ % count)];
    const auto sink = [&, last = Clock::now(), began = false](Delta&& delta) mutable {
      if (!delta.ids.empty()) {
        (std::exchange(began, true) ? outcome.between_tokens : outcome.first_token)
            .push_back(SecondsSince(last));
        last = Clock::now();
      }
      if (delta.end == End::kError) problem = delta.problem;
      if (!delta.end) return;
      ++outcome.answered;
      ask();
    };
    scheduler.Submit(RequestOf(errand, asked, model.config().vocab_size), sink);
  };
  for (int64_t i = 0; i < load.streams; ++i) ask();
  auto start = Clock::now();
  SchedulerStats before, now;
  bool counts = !load.endless;
  for (auto step = start; scheduler.Step(); step = Clock::now()) {
    if (!problem.empty()) Fail("an answer ended: {}", problem);
    const uint64_t read = std::exchange(now, scheduler.stats()).prompt_tokens;
    (read == now.prompt_tokens ? outcome.answer_steps : outcome.mixed_steps)
        .push_back(SecondsSince(step));
    outcome.most_running = std::max(outcome.most_running, now.running);
    outcome.most_pages = std::max(outcome.most_pages, now.pages_in_use);
    outcome.seconds = SecondsSince(start);
    const bool late = load.seconds > 0 && outcome.seconds >= load.seconds;
    if (!counts && (late || std::ssize(outcome.first_token) >= now.running)) {
      outcome = {.most_running = outcome.most_running, .most_pages = outcome.most_pages};
      counts = true;
      before = now;
      start = Clock::now();
      continue;
    }
    if (!counts) continue;
    outcome.written = static_cast<int64_t>(now.written_tokens - before.written_tokens);
    outcome.read = static_cast<int64_t>(now.prompt_tokens - before.prompt_tokens);
    outcome.preemptions = static_cast<int64_t>(now.preemptions - before.preemptions);
    if (tell) tell(outcome);
    if (late || (load.endless && outcome.answered >= count)) break;
  }
  return outcome;
}

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto at =
      std::min(static_cast<size_t>(share * static_cast<double>(values.size())), values.size() - 1);
  std::ranges::nth_element(values, values.begin() + static_cast<int64_t>(at));
  return values[at];
}

}  // namespace nibble::cli
