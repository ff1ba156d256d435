// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/config.h"

namespace nibble {

// Token ids of `text`, the tokenizer's special tokens (BOS) included as it adds them.
std::vector<int32_t> TokenizeText(const std::string& model_directory, const std::string& text);

// What every window of text has to begin with: BOS, where the model was trained so (BeginsWithBos)
// and its tokenizer adds one.
std::optional<int32_t> WindowBos(const std::string& model_directory, const ModelConfig& config);

// `count` windows of `context` tokens at random starts (overlap allowed), one after the other. A
// text shorter than one window is an error naming `where`.
std::vector<int32_t> RandomWindows(const std::vector<int32_t>& ids, int64_t count, int64_t context,
                                   uint64_t seed, const std::string& where);

// At most `wanted` windows of `length` tokens, from all of the text, that no window of
// RandomWindows with the same numbers touches.
std::vector<std::vector<int32_t>> UnseenWindows(const std::vector<int32_t>& ids, int64_t count,
                                                int64_t context, uint64_t seed, int64_t wanted,
                                                int64_t length);

}  // namespace nibble
