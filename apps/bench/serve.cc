// SPDX-License-Identifier: Apache-2.0
// A scheduler under a mixed load, beside what its prompts and its answers take by themselves.
#include "apps/bench/bench.h"
#include "apps/bench/serve_load.h"

namespace nibble::cli {
namespace {

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
  read(std::min<int64_t>(2048, model.context()));
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
  if (a.memory > 0) return RunServeTable(a, common);
  Model model(BenchNetwork(a), MakeBackend(common.device, false));
  const std::vector<Errand> errands =
      DrawErrands(a.batch * a.repeats, {a.longest_prompt, a.longest_answer}, model.context());
  SchedulerOptions options = {
      .max_batch = a.batch, .max_waiting = 1 << 20, .prompt_tokens = a.tokens};
  const int64_t max =
      model.kv_groups().MaxPages(PagesOf(LongestText(errands)), options.MaxStep(model));
  options.pages = std::max(max, a.batch * max * a.pages / 100);
  RunLoad(model, {a.batch, {errands.begin(), errands.begin() + a.batch}}, options);
  const LoadOutcome o = RunLoad(model, {a.batch, errands}, options);
  const double prompts = PromptsAlone(model, errands), answers = AnswersAlone(model, a, errands);
  const double pages = static_cast<double>(o.most_pages) / static_cast<double>(options.pages);
  const Json row = {{"model", BenchName(a, model.network())},
                    {"streams", a.batch},
                    {"requests", errands.size()},
                    {"seconds", o.seconds},
                    {"written_per_second", o.written_per_second()},
                    {"read_per_second", o.read_per_second()},
                    {"prompts_alone_seconds", prompts},
                    {"answers_alone_seconds", answers},
                    {"share_of_alone", (prompts + answers) / o.seconds},
                    {"most_pages_in_use", pages},
                    {"preemptions", o.preemptions}};
  if (common.json) return PrintJson(row);
  fmt::print("{}\n{} requests on {} streams: {:.1f} s, {:.0f} tokens/s written, {:.0f} read\n",
             BenchName(a, model.network()), errands.size(), a.batch, o.seconds,
             o.written_per_second(), o.read_per_second());
  fmt::print("alone: prompts {:.1f} s, answers {:.1f} s; {:.1f} % of the time of both\n", prompts,
             answers, 100 * (prompts + answers) / o.seconds);
  fmt::print("{} steps of answers alone, median {:.2f} ms; {} with prompts, median {:.2f} ms\n",
             o.answer_steps.size(), 1e3 * Quantile(o.answer_steps, 0.5), o.mixed_steps.size(),
             1e3 * Quantile(o.mixed_steps, 0.5));
  fmt::print("pages in use at most {:.1f} %, {} preemptions\n", 100 * pages, o.preemptions);
}

}  // namespace nibble::cli
