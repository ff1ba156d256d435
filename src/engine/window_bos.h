// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "models/config.h"
#include "text/tokenizer.h"

namespace nibble {

// The token that every window of a text has to begin with, of calibration and of evaluation: BOS,
// where a model was trained on texts that all begin with it and predicts others badly, as Gemma,
// and its tokenizer adds it.
std::optional<int32_t> WindowBos(const Tokenizer& tokenizer, const ModelConfig& config);

}  // namespace nibble
