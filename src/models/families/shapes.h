// SPDX-License-Identifier: Apache-2.0
// Well-known models by name, for networks without a download.
#pragma once

#include <string_view>

#include "models/config.h"

namespace nibble {

// The config.json of "llama2-7b", "qwen3-8b", .. with the published sizes, room for 8192 positions
// and an untied head; of some of its layers (0: all), among which as large a share reads keys of
// others. An unknown name is a usage error that lists the known ones.
Json ShapeConfig(std::string_view name, int64_t layers = 0);
ModelConfig FindShape(std::string_view name);
// The first known shape with this model's family and sizes; empty: none.
std::string_view ShapeNameOf(const ModelConfig& config);

}  // namespace nibble
