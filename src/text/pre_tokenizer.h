// SPDX-License-Identifier: Apache-2.0
// The "pre_tokenizer" of a tokenizer.json: cuts a normalized text into the pieces that the model
// works on one by one. Steps either cut pieces further or rewrite their text. Immutable after
// loading.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_json.h"
#include "text/work.h"

namespace nibble {

struct Pieces {
  struct Range {
    size_t begin, end;
  };
  std::string_view operator[](size_t i) const {
    return std::string_view(text).substr(ranges[i].begin, ranges[i].end - ranges[i].begin);
  }

  std::string text;
  std::vector<Range> ranges;  // ascending, not empty, disjoint; gaps were removed
  bool starts_input;          // the text stands at the very start of what the user gave
};

class PreTokenizer {
 public:
  static PreTokenizer FromJson(const std::optional<JsonNode>& node);  // none: one piece
  Pieces Split(std::string text, bool starts_input, Work* work) const;

 private:
  using Step = std::function<void(Pieces*, Work*)>;
  std::vector<Step> steps_;
};

}  // namespace nibble
