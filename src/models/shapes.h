// SPDX-License-Identifier: Apache-2.0
// Well-known models by name, for networks without a download.
#pragma once

#include <string_view>

#include "models/config.h"

namespace nibble {

// The published sizes of "llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "qwen2.5-7b" or
// "mixtral-8x7b", with room for 8192 positions. An unknown name is a usage error that lists the
// known ones.
ModelConfig FindShape(std::string_view name);

}  // namespace nibble
