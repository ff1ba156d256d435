// SPDX-License-Identifier: Apache-2.0
// pooling.json: how a model makes one vector of a text. Files of sentence-transformers and a key of
// GGUF are both seen as
//   {"pooling_mode": "lasttoken", "normalize": true}
// with sentence-transformers' names of modes, or a list of modes put side by side. "modules" names
// those that are none of a transformer, its pooling and a norm.
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
