// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>
#include <optional>

#include "apps/cli/cli.h"
#include "apps/cli/sampling_options.h"
#include "apps/cli/text_output.h"
#include "base/interrupt.h"
#include "models/import/open_network.h"

namespace nibble::cli {
namespace {

struct GenerateArguments {
  std::string model, prompt_file, batch_file;
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_ids;
  Loading loading;
  bool sample = false;
  SamplingArguments sampling;
};

std::vector<std::vector<int32_t>> Prompts(const GenerateArguments& a,
                                          const std::optional<Tokenizer>& tokenizer) {
  if (!tokenizer) return {a.prompt_ids};
  std::vector<std::string> texts;
  if (!a.batch_file.empty()) {
    ForEachLine(a.batch_file, [&](const Json& line, const std::string& where) {
      texts.push_back(JsonGet<std::string>(line, "prompt", where));
    });
  } else {
    texts.push_back(a.prompt ? *a.prompt : ReadText(a.prompt_file));
  }
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& text : texts) {
    prompts.push_back(tokenizer->Encode(text));
    if (prompts.back().empty()) FailUsage("a prompt is empty; pass --prompt TEXT");
  }
  return prompts;
}

void RunGenerate(const GenerateArguments& a, const Common& common) {
  const int given =
      a.prompt.has_value() + !a.prompt_ids.empty() + !a.prompt_file.empty() + !a.batch_file.empty();
  if (given != 1) {
    FailUsage("pass one of --prompt TEXT, --prompt-ids 0,17,5, --prompt-file and --batch");
  }
  a.sampling.Check();
  std::optional<Tokenizer> tokenizer;
  if (a.prompt_ids.empty()) tokenizer = Tokenizer::Load(a.model);
  const auto prompts = Prompts(a, tokenizer);
  Network network = OpenNetwork(a.model);
  for (const auto& prompt : prompts) {
    RequireFits(network.config, static_cast<int64_t>(prompt.size()));
  }
  const GenerationConfig config = LoadGenerationConfig(a.model, network.config_json);
  const auto model = Load(std::move(network), common, false, a.loading);
  const bool json = common.json || !a.batch_file.empty();
  for (const std::vector<int32_t>& prompt : prompts) {
    const GenerateOptions options = a.sampling.Options(config, a.sample);
    const auto count = static_cast<int64_t>(prompt.size());
    Session session(*model);
    TextOutput output(tokenizer ? &*tokenizer : nullptr, !json, a.sampling.stops);
    const Generation g =
        Generate(session, prompt, options, [&](int32_t id) { return output.Push(id); });
    output.Finish();
    if (json) {
      PrintJson(GenerationJson(output, count, g, options));
      FlushOutput();
    } else {
      PrintSpeed(count, g, options);
    }
    if (Interrupted()) Fail("interrupted");
  }
}

}  // namespace

void AddGenerate(CLI::App& app, Common& common, Run& run) {
  const auto a = std::make_shared<GenerateArguments>();
  CLI::App* verb = AddVerb(app, common, "generate", "Continue a prompt",
                           "nibble generate llama-w4a4kv4 --prompt \"The river\" --max-tokens 64\n"
                           "  nibble generate llama.gguf --batch prompts.jsonl > texts.jsonl\n"
                           "  nibble generate llama --prompt-ids 0,17,5 --json");
  AddModel(*verb, a->model)->required();
  verb->add_option("--prompt", a->prompt, "Text to continue");
  verb->add_option("--prompt-file", a->prompt_file, "The same from a file; -: standard input");
  verb->add_option("--batch", a->batch_file,
                   "A {\"prompt\": TEXT} in each line of a file (-: standard input); answers are "
                   "lines as of --json");
  verb->add_option("--prompt-ids", a->prompt_ids, "Token ids instead, no tokenizer needed")
      ->delimiter(',');
  AddLoading(*verb, a->loading);
  verb->add_flag("--sample", a->sample, "Sample as chat does; without, the most likely tokens");
  AddSampling(*verb, a->sampling);
  verb->callback([a, &common, &run] { run = [a, &common] { RunGenerate(*a, common); }; });
}

}  // namespace nibble::cli
