// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "apps/cli/cli.h"
#include "apps/cli/evaluation_text.h"
#include "base/progress.h"

namespace nibble::cli {
namespace {

struct EvalArguments {
  std::string model, reference;
  bool decoded = false;
  Loading loading = {.bits = 32};
  EvaluationText text;
};

void RunPerplexity(EvalArguments& a, const Common& common) {
  const auto model = Load(a.model, common, a.decoded, a.loading);
  const PerplexityResult r = Perplexity(*model, LoadWindows(a.text, a.model, model->config()));
  const double rate = static_cast<double>(r.windows * r.context) / r.seconds;
  if (common.json) {
    PrintJson({{"perplexity", r.perplexity},
               {"nll", r.nll},
               {"tokens", r.tokens},
               {"windows", r.windows},
               {"context", r.context},
               {"window_bos", a.text.windows.window_bos},
               {"seconds", r.seconds},
               {"tokens_per_second", rate}});
    return;
  }
  fmt::print(
      "perplexity  {:.4f}\nloss        {:.5f} nats per token\ntokens      {} in {} windows of "
      "{}{}\n"
      "time        {:.1f} s, {:.0f} tokens/s ({})\n",
      r.perplexity, r.nll, r.tokens, r.windows, r.context,
      a.text.windows.window_bos ? ", each behind BOS" : "", r.seconds, rate,
      model->backend().Name());
}

void RunKl(EvalArguments& a, const Common& common) {
  const auto model = Load(a.model, common, a.decoded, a.loading);
  const auto reference = Load(a.reference, common, false);
  const KlResult r =
      KlDivergence(*model, *reference, LoadWindows(a.text, a.model, model->config()));
  if (common.json) {
    PrintJson({{"kl_mean", r.kl_mean},
               {"kl_p99", r.kl_p99},
               {"top1_agreement", r.top1_agreement},
               {"perplexity", r.perplexity},
               {"reference_perplexity", r.reference_perplexity},
               {"loss_difference", r.loss_difference},
               {"loss_difference_stderr", r.loss_difference_stderr},
               {"tokens", r.tokens}});
    return;
  }
  fmt::print(
      "KL divergence    {:.5f} nats mean, {:.4f} at the 99th percentile\n"
      "same top token   {:.2f} %\nperplexity       {:.4f}, reference {:.4f}\n"
      "loss             {:+.5f} nats per token (standard error over windows {:.5f})\n"
      "tokens           {}\n",
      r.kl_mean, r.kl_p99, 100 * r.top1_agreement, r.perplexity, r.reference_perplexity,
      r.loss_difference, r.loss_difference_stderr, r.tokens);
}

void AddShared(CLI::App& verb, EvalArguments& a) {
  AddModel(verb, a.model)->required();
  verb.add_flag(
      "--decoded", a.decoded,
      "Decode codes and cache to fp32 and use BLAS: the check that the integers are right");
  AddLoading(verb, a.loading);
  AddEvaluationText(verb, a.text);
}

}  // namespace

void AddEval(CLI::App& app, Common& common, Run& run) {
  CLI::App* eval = app.add_subcommand("eval", "Measure quality: ppl, kl, tasks, loglikelihood");
  eval->require_subcommand(1);
  const auto a = std::make_shared<EvalArguments>();
  CLI::App* ppl = AddVerb(*eval, common, "ppl", "Perplexity of a text",
                          "nibble eval ppl llama-w4a4kv4 --text wiki.test.raw");
  AddShared(*ppl, *a);
  ppl->callback([a, &common, &run] { run = [a, &common] { RunPerplexity(*a, common); }; });
  CLI::App* kl = AddVerb(*eval, common, "kl", "Divergence from a reference model",
                         "nibble eval kl llama-w4a4kv4 --reference llama --text wiki.test.raw");
  AddShared(*kl, *a);
  kl->add_option("--reference", a->reference, "Model to compare with")
      ->required()
      ->transform(ModelName());
  kl->callback([a, &common, &run] { run = [a, &common] { RunKl(*a, common); }; });
  AddEvalTasks(*eval, common, run);
}

}  // namespace nibble::cli
