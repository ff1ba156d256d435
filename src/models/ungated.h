// SPDX-License-Identifier: Apache-2.0
// What families of LayerNorms share (Family::layer_norms): FFNs of one linear in front, and q, k
// and v in one tensor, head by head.
#pragma once

#include "models/llama.h"

namespace nibble {

// What ParseLlama makes of these numbers of config.json, with norms whose biases are everyone's,
// and an FFN of the activation that `activation` names. Linears have biases of their own where
// `biases` says so.
ModelConfig ParseUngated(const Json& config, const std::string& activation, double norm_eps,
                         bool biases, const std::string& where);

// Of q, k and v, group by group: a key head's queries, its keys, its values.
RowBlock GroupedRows(const ModelConfig& config, Role role);

}  // namespace nibble
