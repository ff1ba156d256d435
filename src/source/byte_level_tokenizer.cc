// SPDX-License-Identifier: Apache-2.0
#include "source/byte_level_tokenizer.h"

#include "source/tokenizer_document.h"

namespace nibble {

Json ByteLevelWords(const WordPattern& words) {
  Json steps = Json::array();
  if (words.single_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (!words.pattern.empty()) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", words.pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back(ByteLevelComponent(words.pattern.empty()));
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

}  // namespace nibble
