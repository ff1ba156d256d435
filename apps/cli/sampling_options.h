// SPDX-License-Identifier: Apache-2.0
// Options of generate and chat that choose tokens and say where a text ends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cli/cli.h"
#include "engine/generation_config.h"
#include "engine/session.h"

namespace nibble::cli {

// Options that are not given are as GenerationConfig says.
struct SamplingArguments {
  int64_t max_tokens = 256;
  std::optional<double> temperature, top_p, min_p, repetition, presence, frequency;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stops;

  // Throws (usage) for values that mean nothing.
  void Check() const { Options({}, false); }
  // answers: not given means GenerationConfig::ForAnswers. A seed that is not given is drawn anew
  // where one is used. Throws as Check.
  GenerateOptions Options(const GenerationConfig& config, bool answers) const;
};

// --max-tokens, --temperature, ..., --seed, --stop.
void AddSampling(CLI::App& verb, SamplingArguments& arguments);

}  // namespace nibble::cli
