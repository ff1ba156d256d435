// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>
#include <optional>

#include "apps/cli/cli.h"
#include "apps/cli/text_output.h"
#include "base/interrupt.h"
#include "engine/generation_config.h"
#include "engine/session.h"

namespace nibble::cli {
namespace {

struct Arguments {
  std::string model;
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_ids;
  bool use_generation_config = false;
  int load_bits = 8;
  GenerateOptions options;
};

std::vector<int32_t> Prompt(const Arguments& a, const std::optional<Tokenizer>& tokenizer) {
  if (!a.prompt) return a.prompt_ids;
  std::vector<int32_t> ids = tokenizer->Encode(*a.prompt);
  if (ids.empty()) FailUsage("the prompt is empty; pass --prompt TEXT");
  return ids;
}

void RunGenerate(Arguments& a, const Common& common) {
  if (a.prompt.has_value() == !a.prompt_ids.empty()) {
    FailUsage("pass either --prompt TEXT or --prompt-ids 0,17,5");
  }
  CheckSampling(a.options.sampling);
  std::optional<Tokenizer> tokenizer;
  if (a.prompt) tokenizer = Tokenizer::Load(a.model);
  const std::vector<int32_t> prompt = Prompt(a, tokenizer);
  Network network = OpenNetwork(a.model);
  RequireFits(network.config, static_cast<int64_t>(prompt.size()));
  const GenerationConfig config = LoadGenerationConfig(a.model, network.config_json);
  a.options.stop_ids = config.stop_ids;
  if (a.use_generation_config) a.options.sampling = config.sampling;
  const auto model = Load(std::move(network), common, false, a.load_bits);
  Session session(*model);
  TextOutput output(tokenizer ? &*tokenizer : nullptr, !common.json);
  const Generation g = Generate(session, prompt, a.options, [&](int32_t id) { output.Push(id); });
  output.Finish();
  if (common.json) {
    PrintJson({{"text", output.text()},
               {"token_ids", g.ids},
               {"prompt_tokens", prompt.size()},
               {"completion_tokens", g.ids.size()},
               {"finish_reason", g.finish == Finish::kStop ? "stop" : "length"}});
  } else {
    PrintSpeed(static_cast<int64_t>(prompt.size()), g);
  }
  if (Interrupted()) Fail("interrupted");
}

}  // namespace

void AddGenerate(CLI::App& app, Common& common, Run& run) {
  const auto a = std::make_shared<Arguments>();
  CLI::App* verb = AddVerb(app, common, "generate", "Continue a prompt",
                           "nibble generate llama-w4a4kv4 --prompt \"The river\" --max-tokens 64\n"
                           "  nibble generate llama --prompt-ids 0,17,5 --json");
  AddModel(*verb, a->model)->required();
  verb->add_option("--prompt", a->prompt, "Text to continue");
  verb->add_option("--prompt-ids", a->prompt_ids, "Token ids instead, no tokenizer needed")
      ->delimiter(',');
  verb->add_flag("--use-generation-config", a->use_generation_config,
                 "Sample as the model's generation_config.json says");
  AddLoadBits(*verb, a->load_bits);
  AddSampling(*verb, a->options);
  verb->callback([a, &common, &run] { run = [a, &common] { RunGenerate(*a, common); }; });
}

}  // namespace nibble::cli
