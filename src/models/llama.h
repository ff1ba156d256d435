// SPDX-License-Identifier: Apache-2.0
// What families built like Llama share: the fields of config.json and the names of tensors.
#pragma once

#include "models/families.h"

namespace nibble {

// A positive whole number up to `max`; above that a file is damaged, whatever it says.
int64_t ParseExtent(const Json& config, const char* key, int64_t max, const std::string& where);

ModelConfig ParseLlama(const Json& config, const std::string& where);
ModelConfig ParseMistral(const Json& config, const std::string& where);  // with a sliding window

std::string LlamaLinear(int64_t layer, Role role);
std::string LlamaNorm(int64_t layer, Norm norm);

}  // namespace nibble
