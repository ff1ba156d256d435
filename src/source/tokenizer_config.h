// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/json.h"

namespace nibble {

// The parts of tokenizer_config.json that tokenizers follow.
struct TokenizerConfig {
  static TokenizerConfig Read(const std::string& directory);

  std::optional<bool> add_bos, add_eos;
  // The tokenizer's class puts tokens around a text by add_bos and add_eos, whatever tokenizer.json
  // says.
  bool frames = false;
  std::optional<std::string> bos, eos, unk, pad;
  Json added_tokens = Json::array();  // as in tokenizer.json
};

}  // namespace nibble
