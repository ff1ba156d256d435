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
  Sampling sampling;              // greedy unless do_sample; repetition_penalty in any case
};
GenerationConfig LoadGenerationConfig(const std::string& model_directory, const Json& config_json);

}  // namespace nibble
