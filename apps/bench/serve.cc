// SPDX-License-Identifier: Apache-2.0
// A scheduler under a mixed load, beside what its prompts and its answers take by themselves.
#include <cmath>

#include "apps/bench/bench.h"
#include "base/progress.h"
#include "measure/random_network.h"
#include "schedule/scheduler.h"

namespace nibble::cli {
namespace {

// Lengths whose logarithms are uniform: many short ones, a few long ones.
int64_t DrawLength(Rng& rng, int64_t min, int64_t max) {
  const double ratio = static_cast<double>(max) / static_cast<double>(min);
  return static_cast<int64_t>(static_cast<double>(min) * std::pow(ratio, rng.Uniform()));
}

struct Errand {
  int64_t prompt, answer;
};

std::vector<Errand> DrawErrands(const BenchArguments& a, int64_t context) {
  Rng rng(1);
  std::vector<Errand> errands;
  for (int64_t i = 0; i < a.batch * a.repeats; ++i) {
    errands.push_back({DrawLength(rng, 32, std::min<int64_t>(2048, context / 2)),
                       DrawLength(rng, 16, std::min<int64_t>(512, context / 2))});
  }
  return errands;
}

// A token without text: what is measured is the model, not its words.
Tokenizer NoText() {
  return Tokenizer::Parse(
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []})",
      "bench");
}

struct Outcome {
  double seconds = 0, max_pages = 0;              // the latter as a share of all
  std::vector<double> answer_steps, mixed_steps;  // seconds each
  SchedulerStats stats;
};

// `batch` requests are under way until all errands are done.
Outcome RunErrands(Model& model, const BenchArguments& a, const std::vector<Errand>& errands,
                   SchedulerOptions options) {
  const Tokenizer tokenizer = NoText();
  Scheduler scheduler(model, tokenizer, nullptr, options);
  size_t next = 0;
  const std::function<void()> submit = [&] {
    if (next == errands.size()) return;
    const Errand& errand = errands[next++];
    Rng rng(next);
    GenerationRequest request = {.max_tokens = errand.answer};
    for (int64_t i = 0; i < errand.prompt; ++i) {
      request.prompt.push_back(
          static_cast<int32_t>(rng.Below(static_cast<uint64_t>(model.config().vocab_size))));
    }
    scheduler.Submit(std::move(request), [&](Delta&& delta) {
      if (delta.end) submit();
    });
  };
  for (int64_t i = 0; i < a.batch; ++i) submit();
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  uint64_t read = 0;
  for (auto step = start; scheduler.Step(); step = std::chrono::steady_clock::now()) {
    const SchedulerStats s = scheduler.stats();
    const bool mixed = std::exchange(read, s.prompt_tokens) != s.prompt_tokens;
    (mixed ? outcome.mixed_steps : outcome.answer_steps).push_back(Seconds(step));
    outcome.max_pages = std::max(
        outcome.max_pages, static_cast<double>(s.pages_in_use) / static_cast<double>(s.pages));
  }
  outcome.seconds = Seconds(start);
  outcome.stats = scheduler.stats();
  return outcome;
}

// Prompts one after the other, in pieces as large as the backend likes them.
double PromptsAlone(Model& model, const std::vector<Errand>& errands) {
  KvCache cache = model.MakeCache();
  const auto chunk_tokens = static_cast<size_t>(model.backend().ChunkTokens());
  const auto read = [&](int64_t tokens) {
    cache.Clear();
    const std::vector<int32_t> ids = RandomIds(model.config(), tokens);
    const float* x = nullptr;
    for (std::span<const int32_t> rest = ids; !rest.empty();) {
      const auto chunk = rest.first(std::min(rest.size(), chunk_tokens));
      const Model::Sequence sequence = {chunk, &cache};
      x = model.Forward({&sequence, 1});
      rest = rest.subspan(chunk.size());
    }
    model.Logits(x, 1);
  };
  read(2048);
  const auto start = std::chrono::steady_clock::now();
  for (const Errand& errand : errands) read(errand.prompt);
  return Seconds(start);
}

// Steps of a whole batch behind the mean context of the answers, for as many tokens.
double AnswersAlone(Model& model, const BenchArguments& a, const std::vector<Errand>& errands) {
  double context = 0, written = 0;
  for (const Errand& errand : errands) {
    const auto answer = static_cast<double>(errand.answer);
    context += answer * (static_cast<double>(errand.prompt) + answer / 2);
    written += answer;
  }
  const auto behind = static_cast<int64_t>(context / written);
  std::vector<KvCache> caches;
  for (int64_t i = 0; i < a.batch; ++i) caches.push_back(model.MakeCache());
  const std::vector<int32_t> ids = RandomIds(model.config(), behind);
  std::vector<Model::Sequence> sequences;
  for (KvCache& cache : caches) {
    const Model::Sequence fill = {ids, &cache};
    model.Forward({&fill, 1});
    sequences.push_back({std::span(ids).first(1), &cache});
  }
  const Timing step = Measure(20, [&] { WriteTokens(model, sequences); });
  return step.median * written / static_cast<double>(a.batch);
}

}  // namespace

void RunServeBench(const BenchArguments& a, const Common& common) {
  Model model(BenchNetwork(a), MakeBackend(common.device, false));
  const std::vector<Errand> errands = DrawErrands(a, model.context());
  int64_t longest = 0;
  for (const Errand& errand : errands) longest = std::max(longest, errand.prompt + errand.answer);
  SchedulerOptions options = {
      .max_batch = a.batch, .max_waiting = 1 << 20, .prompt_tokens = a.tokens};
  const int64_t max = model.kv_groups().MaxPages(PagesOf(longest), options.MaxStep(model));
  options.pages = std::max(max, a.batch * max * a.pages / 100);
  RunErrands(model, a, std::vector<Errand>(errands.begin(), errands.begin() + a.batch), options);
  const Outcome o = RunErrands(model, a, errands, options);
  const double prompts = PromptsAlone(model, errands), answers = AnswersAlone(model, a, errands);
  const auto read = static_cast<double>(o.stats.prompt_tokens);
  const auto written = static_cast<double>(o.stats.written_tokens);
  const Json row = {{"model", BenchName(a, model.network())},
                    {"streams", a.batch},
                    {"requests", errands.size()},
                    {"seconds", o.seconds},
                    {"written_per_second", written / o.seconds},
                    {"read_per_second", read / o.seconds},
                    {"prompts_alone_seconds", prompts},
                    {"answers_alone_seconds", answers},
                    {"share_of_alone", (prompts + answers) / o.seconds},
                    {"most_pages_in_use", o.max_pages},
                    {"preemptions", o.stats.preemptions}};
  if (common.json) return PrintJson(row);
  fmt::print("{}\n{} requests on {} streams: {:.1f} s, {:.0f} tokens/s written, {:.0f} read\n",
             BenchName(a, model.network()), errands.size(), a.batch, o.seconds, written / o.seconds,
             read / o.seconds);
  fmt::print("alone: prompts {:.1f} s, answers {:.1f} s; {:.1f} % of the time of both\n", prompts,
             answers, 100 * (prompts + answers) / o.seconds);
  const auto median = [](std::vector<double> seconds) {
    if (seconds.empty()) return 0.0;
    std::ranges::nth_element(seconds, seconds.begin() + static_cast<int64_t>(seconds.size() / 2));
    return 1e3 * seconds[seconds.size() / 2];
  };
  fmt::print("{} steps of answers alone, median {:.2f} ms; {} with prompts, median {:.2f} ms\n",
             o.answer_steps.size(), median(o.answer_steps), o.mixed_steps.size(),
             median(o.mixed_steps));
  fmt::print("pages in use at most {:.1f} %, {} preemptions\n", 100 * o.max_pages,
             o.stats.preemptions);
}

}  // namespace nibble::cli
