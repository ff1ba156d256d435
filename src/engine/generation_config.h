// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "engine/sampler.h"

namespace nibble {

// generation_config.json of a model directory, completed by its config.json; a missing file is
// fine.
struct GenerationConfig {
  std::vector<int32_t> stop_ids;  // every end-of-sequence id
  Sampling sampling;              // greedy unless do_sample; penalties in any case
  bool samples = false;           // do_sample

  // The sampling of answers, as chat, serve and generate --sample write them: the model's own, or
  // where it has none, temperature 0.7 among the tokens that hold 95 % of the probability and are
  // at least a twentieth as likely as the likeliest one.
  Sampling ForAnswers() const;
};
GenerationConfig LoadGenerationConfig(const std::string& model_directory, const Json& config_json);

}  // namespace nibble
