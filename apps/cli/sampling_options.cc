// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/sampling_options.h"

#include <random>

namespace nibble::cli {

GenerateOptions SamplingArguments::Options(const GenerationConfig& config, bool answers) const {
  GenerateOptions options = {.max_tokens = max_tokens,
                             .sampling = answers ? config.ForAnswers() : config.sampling,
                             .stop_ids = config.stop_ids};
  Sampling& s = options.sampling;
  s.temperature = temperature.value_or(s.temperature);
  s.top_p = top_p.value_or(s.top_p);
  s.top_k = top_k.value_or(s.top_k);
  s.min_p = min_p.value_or(s.min_p);
  s.repetition = repetition.value_or(s.repetition);
  s.presence = presence.value_or(s.presence);
  s.frequency = frequency.value_or(s.frequency);
  CheckSampling(s);
  if (s.temperature > 0) options.seed = seed ? *seed : std::random_device()();
  return options;
}

void AddSampling(CLI::App& verb, SamplingArguments& a) {
  // Ranges are those of CheckSampling; CLI::Range lets NaN pass.
  verb.add_option("--max-tokens", a.max_tokens, "Tokens to write at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->capture_default_str();
  verb.add_option("--temperature", a.temperature,
                  "0 = the most likely token. This and what follows: without, as the model's "
                  "generation_config.json says; where it says nothing, answers of chat and of "
                  "generate --sample have temperature 0.7, top-p 0.95, min-p 0.05");
  verb.add_option("--top-p", a.top_p, "Probability mass to sample from");
  verb.add_option("--top-k", a.top_k, "Tokens to sample from; 0 = all");
  verb.add_option("--min-p", a.min_p, "Least probability, as a share of the likeliest token's");
  verb.add_option("--repetition-penalty", a.repetition,
                  "Divides the logits of tokens that occurred; 1 = none");
  verb.add_option("--presence-penalty", a.presence, "Taken from the logits of tokens written");
  verb.add_option("--frequency-penalty", a.frequency, "The same for each time they were written");
  verb.add_option("--seed", a.seed, "Seed of the sampling; without, a new one each time")
      ->check(kNotNegative);
  verb.add_option("--stop", a.stops, "Text that ends the answer; may be given again")
      ->allow_extra_args(false);
}

}  // namespace nibble::cli
