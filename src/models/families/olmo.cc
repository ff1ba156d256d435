// SPDX-License-Identifier: Apache-2.0
// OLMo 2 (OLMo et al. 2024, section 2): norms behind attention and FFN alone, and of all heads of q
// and of k at once.
#include "models/families/llama.h"

namespace nibble {
namespace {

ModelConfig ParseOlmo2(const Json& config, const std::string& where) {
  ModelConfig c = ParseWithBiases(config, where);
  c.vectors = {LayerVector::kQueryNorm, LayerVector::kKeyNorm, LayerVector::kPostAttentionNorm,
               LayerVector::kPostMlpNorm};
  c.wide_query_norms = true;
  return c;
}

}  // namespace

const Family kOlmo2 = {.model_type = "olmo2",
                       .parse = ParseOlmo2,
                       .linear = LlamaLinear,
                       .vector = VectorBehind,
                       .final_norm = "model.norm.weight"};

}  // namespace nibble
