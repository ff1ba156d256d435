// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/json.h"

namespace nibble {

// tokenizer_config.json, as far as tokenizers follow it.
struct TokenizerConfig {
  static TokenizerConfig Read(const std::string& directory);

  std::optional<bool> add_bos, add_eos;
  // Its class puts tokens around a text by these two, whatever tokenizer.json says.
  bool frames = false;
  std::optional<std::string> bos, eos, unk, pad;
  Json added_tokens = Json::array();  // as in tokenizer.json
};

}  // namespace nibble
