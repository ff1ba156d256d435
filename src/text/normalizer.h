// SPDX-License-Identifier: Apache-2.0
// The "normalizer" of a tokenizer.json: what happens to a text before it is split. Immutable after
// loading; valid UTF-8 in, valid UTF-8 out.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer_json.h"
#include "text/work.h"

namespace nibble {

class Normalizer {
 public:
  static Normalizer FromJson(const std::optional<JsonNode>& node);  // none: text stays as it is
  std::string Apply(std::string text, Work* work) const;

 private:
  using Step = std::function<std::string(std::string, Work*)>;
  std::vector<Step> steps_;
};

}  // namespace nibble
