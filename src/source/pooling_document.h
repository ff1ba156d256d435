// SPDX-License-Identifier: Apache-2.0
// pooling.json: how a model makes one vector of a text. A directory of sentence-transformers says
// it in modules.json and in a folder of its pooling, a GGUF file in a key; both are seen as
//   {"pooling_mode": "lasttoken", "normalize": true}
// with sentence-transformers' names of modes, or a list of them where several are put side by side.
// Modules that are none of a transformer, its pooling and a norm are named in "modules".
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "io/gguf.h"

namespace nibble {

inline constexpr const char* kPoolingName = "pooling.json";

// Nothing where the model does not say how it pools.
std::optional<Json> FindPooling(const std::string& directory);
std::optional<Json> FindGgufPooling(const GgufFile& file);

}  // namespace nibble
