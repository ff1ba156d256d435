// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "models/config.h"
#include "models/row_block.h"

namespace nibble {

// One model family: how its config.json reads and what its tensors are called.
struct Family {
  std::string_view model_type;
  ModelConfig (*parse)(const Json& config, const std::string& where);
  // The name of a linear without ".weight" / ".bias".
  std::string (*linear)(const ModelConfig& config, int64_t layer, Role role);
  // The whole name of a vector.
  std::string (*vector)(const ModelConfig& config, int64_t layer, LayerVector vector);
  std::string_view final_norm;
  std::string_view layer_input_norm = {};  // of ModelConfig::layer_input_size
  bool rope_pairs = false;  // rows of q and k that RoPE turns together stand side by side
  // The rows of one linear where several lie in one tensor. Null: each has its own.
  RowBlock (*rows)(const ModelConfig& config, Role role) = nullptr;
  // Stored norms lack the 1 that is added to their weights.
  bool norms_lack_one = false;
  // Norms subtract the mean and add a bias (LayerNorm, Ba et al. 2016). OpenNetwork moves the first
  // into what is added to the residual stream, whose mean is then 0, and the second into what reads
  // the norms, so that RMS norms are left (SliceGPT, Ashkboos et al. 2024, section 3.1).
  bool layer_norms = false;
  // The table of ModelConfig::learned_positions, and the number of its rows in front of those of
  // places 0, 1, ..
  std::string_view positions = {};
  int64_t unused_positions = 0;
};

// The part of a config.json that describes the text model: its text_config where it has one, as
// models that see or hear have.
const Json& TextConfig(const Json& config);
// The table's row for the config's model_type; an unknown family is an error listing the known
// ones.
const Family& FamilyOf(const Json& config, const std::string& where);
ModelConfig ParseConfig(const Json& config, const std::string& where);

// Name of a linear in the source, "model.layers.3.mlp.down_proj"; LinearName in a family nobody
// reads.
std::string SourceName(const ModelConfig& config, int64_t layer, Role role);

}  // namespace nibble
