// SPDX-License-Identifier: Apache-2.0
// EXAONE 4 (LG AI Research 2025): norms behind attention and FFN alone and of each query and key
// head; among layers with a window, those that see all keys have no positions.
#include "models/families/llama.h"

namespace nibble {
namespace {

// With a pattern "LLLG", or 4, every fourth layer sees all keys.
int64_t PatternLength(const Json& config, const std::string& where) {
  const auto pattern = config.find("sliding_window_pattern");
  if (pattern != config.end() && pattern->is_string()) {
    const auto letters = pattern->get<std::string>();
    const bool known = !letters.empty() && letters.find_first_not_of('L') == letters.size() - 1 &&
                       letters.back() == 'G';
    if (!known) Fail("{}: sliding_window_pattern \"{}\", expected L, .., G", where, letters);
    return static_cast<int64_t>(letters.size());
  }
  return JsonFindIn<int64_t>(config, "sliding_window_pattern", 1, 1 << 12, where).value_or(4);
}

ModelConfig ParseExaone4(const Json& config, const std::string& where) {
  ModelConfig c = ParseLlama(config, where);
  c.vectors = {LayerVector::kQueryNorm, LayerVector::kKeyNorm, LayerVector::kPostAttentionNorm,
               LayerVector::kPostMlpNorm};
  const int64_t window = ParseWindow(config, where);
  if (window == 0) return c;
  c.specs = ParseLayerTypes(config, c.layers, window, where, PatternLength(config, where));
  for (LayerSpec& spec : c.specs) spec.rope = spec.sliding_window > 0 ? 0 : -1;
  return c;
}

}  // namespace

const Family kExaone4 = {.model_type = "exaone4",
                         .parse = ParseExaone4,
                         .linear = LlamaLinear,
                         .vector = VectorBehind,
                         .final_norm = "model.norm.weight"};

}  // namespace nibble
