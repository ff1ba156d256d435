// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <memory>

#include "apps/cli/cli.h"
#include "base/rng.h"
#include "engine/session.h"

namespace nibble::cli {
namespace {

struct Arguments {
  std::string model;
  int64_t tokens = 512, context = 0, repeats = 5;
};

struct Timing {
  double median = 0, min = 0;  // seconds
};

// Times work(state) with a fresh state = prepare() per run; the first run warms up.
template <typename Prepare, typename Work>
Timing Measure(int64_t repeats, Prepare&& prepare, Work&& work) {
  std::vector<double> seconds;
  for (int64_t i = 0; i <= repeats; ++i) {
    auto state = prepare();
    const auto start = std::chrono::steady_clock::now();
    work(*state);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (i > 0) seconds.push_back(elapsed.count());
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds[0]};
}

std::vector<int32_t> RandomIds(const ModelConfig& config, int64_t count) {
  Rng rng(1);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(config.vocab_size))));
  }
  return ids;
}

void PrintRow(const std::string& name, const std::string& shape, double tokens, const Timing& t,
              const Model& model, const Common& common) {
  if (common.json) {
    PrintJson(Json::array({{{"name", name},
                            {"shape", shape},
                            {"median_us", t.median * 1e6},
                            {"min_us", t.min * 1e6},
                            {"tokens_per_second", tokens / t.median}}}));
    return;
  }
  fmt::print("{}", Table({{"bench", "shape", "median us", "min us", "tokens/s"},
                          {name, shape, fmt::format("{:.0f}", t.median * 1e6),
                           fmt::format("{:.0f}", t.min * 1e6),
                           fmt::format("{:.1f}", tokens / t.median)}}));
  fmt::print("{}\n", model.network().directory);
}

void RunPrefill(const Arguments& a, const Common& common) {
  const auto model = LoadModel(a.model, common.device, false);
  const std::vector<int32_t> ids = RandomIds(model->config(), a.tokens);
  const Timing t = Measure(
      a.repeats, [&] { return std::make_unique<Session>(*model); },
      [&](Session& session) { session.Append(ids); });
  PrintRow("prefill", fmt::format("{} tokens", a.tokens), static_cast<double>(a.tokens), t, *model,
           common);
}

// Tokens written one by one behind `context` tokens.
void RunDecode(const Arguments& a, const Common& common) {
  const auto model = LoadModel(a.model, common.device, false);
  const std::vector<int32_t> prompt = RandomIds(model->config(), std::max<int64_t>(a.context, 1));
  const std::vector<int32_t> ids = RandomIds(model->config(), a.tokens);
  const auto prefilled = [&] {
    auto session = std::make_unique<Session>(*model);
    session->Append(prompt);
    return session;
  };
  const Timing t = Measure(a.repeats, prefilled, [&](Session& session) {
    for (int32_t id : ids) session.Append({&id, 1});
  });
  PrintRow("decode", fmt::format("{} tokens after {}", a.tokens, prompt.size()),
           static_cast<double>(a.tokens), t, *model, common);
}

}  // namespace

void AddBench(CLI::App& app, Common& common, Run& run) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed: prefill, decode");
  bench->require_subcommand(1);
  const auto a = std::make_shared<Arguments>();
  const auto shared = [&](CLI::App& verb) {
    verb.add_option("model", a->model, "Model directory or checkpoint")->required();
    verb.add_option("--tokens", a->tokens, "Tokens to process")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    verb.add_option("--repeats", a->repeats, "Timed runs; the median counts")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
  };
  CLI::App* prefill = AddVerb(*bench, common, "prefill", "A prompt in one batch",
                              "nibble bench prefill llama-w4a4kv4 --tokens 512");
  shared(*prefill);
  prefill->callback([a, &common, &run] { run = [a, &common] { RunPrefill(*a, common); }; });
  CLI::App* decode = AddVerb(*bench, common, "decode", "Tokens one by one",
                             "nibble bench decode llama-w4a4kv4 --tokens 64 --context 1024");
  shared(*decode);
  decode->add_option("--context", a->context, "Tokens in the cache before")
      ->check(CLI::Range(0, 1 << 20));
  decode->callback([a, &common, &run] { run = [a, &common] { RunDecode(*a, common); }; });
}

}  // namespace nibble::cli
