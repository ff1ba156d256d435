// SPDX-License-Identifier: Apache-2.0
// Configs and tensors of families with LayerNorms (Family::layer_norms): FFNs of one linear in
// front, and q, k and v in one tensor, head by head.
#pragma once

#include "models/families/llama.h"

namespace nibble {

// Parses a config as ParseLlama does, with these numbers in place of its own, biases in every
// linear that takes up those of norms, and an FFN of the activation that `activation` names.
// `biases`: o and down have biases, too.
ModelConfig ParseUngated(const Json& config, const std::string& activation, double norm_eps,
                         bool biases, const std::string& where);

// The rows of q, k or v where one tensor has them group by group: a key head's queries, its keys,
// its values.
RowBlock GroupedRows(const ModelConfig& config, Role role);

}  // namespace nibble
