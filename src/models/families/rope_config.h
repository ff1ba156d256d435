// SPDX-License-Identifier: Apache-2.0
// Reads from a config.json how positions turn q and k.
#pragma once

#include "base/json.h"
#include "transforms/rope.h"

namespace nibble {

// transformers 5 keeps everything in rope_parameters, for each type of layers where `layer_type` is
// one of its keys; transformers 4 has rope_theta at top level and rope_scaling null, absent or an
// object (whose older key for rope_type is "type"). context: max_position_embeddings, which decides
// between the two lists of longrope once and for all, as vLLM and llama.cpp do.
RopeSpec ParseRope(const Json& config, int64_t head_dim, int64_t context, const std::string& where,
                   const char* layer_type = "full_attention");

}  // namespace nibble
