// SPDX-License-Identifier: Apache-2.0
#include "engine/window_bos.h"

namespace nibble {

std::optional<int32_t> WindowBos(const Tokenizer& tokenizer, const ModelConfig& config) {
  if (!config.family.starts_with("gemma")) return std::nullopt;
  const std::vector<int32_t> empty = tokenizer.Encode("");
  return empty.empty() ? std::nullopt : std::optional(empty[0]);
}

}  // namespace nibble
