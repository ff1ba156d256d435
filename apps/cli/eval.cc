// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "apps/cli/cli.h"
#include "base/file.h"
#include "base/progress.h"
#include "eval/perplexity.h"
#include "eval/text_windows.h"

namespace nibble::cli {
namespace {

struct Arguments {
  std::string model, reference, text, protocol = "plain";
  bool decoded = false;
  WindowOptions windows;
};

Windows LoadWindows(Arguments& a, const ModelConfig& config) {
  if (a.windows.context == 0) a.windows.context = std::min<int64_t>(2048, config.context);
  if (a.windows.context < 2 || a.windows.context > config.context) {
    FailUsage("--context {}: use 2 to {}, the model's context", a.windows.context, config.context);
  }
  a.windows.gptq_rows = a.protocol == "gptq";
  const Tokenizer tokenizer = Tokenizer::Load(a.model + "/tokenizer.json");
  return TextWindows(tokenizer, ReadFile(a.text, uint64_t{1} << 30), a.windows, a.text);
}

void RunPerplexity(Arguments& a, const Common& common) {
  const auto model = Load(a.model, common, a.decoded);
  const PerplexityResult r = Perplexity(*model, LoadWindows(a, model->config()));
  const double rate = static_cast<double>(r.windows * r.context) / r.seconds;
  if (common.json) {
    PrintJson({{"perplexity", r.perplexity},
               {"nll", r.nll},
               {"tokens", r.tokens},
               {"windows", r.windows},
               {"context", r.context},
               {"seconds", r.seconds},
               {"tokens_per_second", rate}});
    return;
  }
  fmt::print(
      "perplexity  {:.4f}\nloss        {:.5f} nats per token\ntokens      {} in {} windows of {}\n"
      "time        {:.1f} s, {:.0f} tokens/s ({})\n",
      r.perplexity, r.nll, r.tokens, r.windows, r.context, r.seconds, rate,
      model->backend().Name());
}

void RunKl(Arguments& a, const Common& common) {
  const auto model = Load(a.model, common, a.decoded);
  const auto reference = Load(a.reference, common, false);
  const KlResult r = KlDivergence(*model, *reference, LoadWindows(a, model->config()));
  if (common.json) {
    PrintJson({{"kl_mean", r.kl_mean},
               {"kl_p99", r.kl_p99},
               {"top1_agreement", r.top1_agreement},
               {"perplexity", r.perplexity},
               {"reference_perplexity", r.reference_perplexity},
               {"tokens", r.tokens}});
    return;
  }
  fmt::print(
      "KL divergence    {:.5f} nats mean, {:.4f} at the 99th percentile\n"
      "same top token   {:.2f} %\nperplexity       {:.4f}, reference {:.4f}\ntokens           {}\n",
      r.kl_mean, r.kl_p99, 100 * r.top1_agreement, r.perplexity, r.reference_perplexity, r.tokens);
}

void AddShared(CLI::App& verb, Arguments& a) {
  verb.add_option("model", a.model, "Model directory or checkpoint")->required();
  verb.add_option("--text", a.text, "Text file")->required();
  verb.add_option("--context", a.windows.context, "Tokens of a window; 0 = min(2048, the model's)");
  verb.add_option("--windows", a.windows.windows, "Only the first N windows; 0 = all");
  verb.add_flag(
      "--decoded", a.decoded,
      "Decode codes and cache to fp32 and use BLAS: the check that the integers are right");
  verb.add_option("--protocol", a.protocol,
                  "plain: the file as it is; gptq: lines joined with blank lines")
      ->check(CLI::IsMember({"plain", "gptq"}))
      ->capture_default_str();
  verb.add_flag("--window-bos", a.windows.window_bos, "Begin every window with BOS");
}

}  // namespace

void AddEval(CLI::App& app, Common& common, Run& run) {
  CLI::App* eval = app.add_subcommand("eval", "Measure quality: ppl, kl, tasks, loglikelihood");
  eval->require_subcommand(1);
  const auto a = std::make_shared<Arguments>();
  CLI::App* ppl = AddVerb(*eval, common, "ppl", "Perplexity of a text",
                          "nibble eval ppl llama-w4a4kv4 --text wiki.test.raw");
  AddShared(*ppl, *a);
  ppl->callback([a, &common, &run] { run = [a, &common] { RunPerplexity(*a, common); }; });
  CLI::App* kl = AddVerb(*eval, common, "kl", "Divergence from a reference model",
                         "nibble eval kl llama-w4a4kv4 --reference llama --text wiki.test.raw");
  AddShared(*kl, *a);
  kl->add_option("--reference", a->reference, "Model to compare with")->required();
  kl->callback([a, &common, &run] { run = [a, &common] { RunKl(*a, common); }; });
  AddEvalTasks(*eval, common, run);
}

}  // namespace nibble::cli
