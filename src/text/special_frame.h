// SPDX-License-Identifier: Apache-2.0
// The "post_processor" of a tokenizer.json, as far as it touches ids: the special tokens put before
// and after a text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "text/tokenizer_json.h"

namespace nibble {

struct SpecialFrame {
  // token_exists(id) tells whether the file defines a token.
  static SpecialFrame FromJson(const std::optional<JsonNode>& node,
                               const std::function<bool(int64_t)>& token_exists);

  std::vector<int32_t> before, after;
};

}  // namespace nibble
