// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace nibble {

// Where a user's programs keep what can be made again: XDG_CACHE_HOME, or ~/.cache; "" where
// neither is an absolute path.
std::string UserCache();
// Where they keep what a user would miss little, histories: XDG_STATE_HOME, or ~/.local/state.
std::string UserState();
// Where Hugging Face's tools keep what they download: HF_HUB_CACHE, or hub in HF_HOME, or
// huggingface/hub in the user's cache.
std::string HubCache();
// Whether a name reads "org/name", as models are called on the Hub.
bool IsHubName(const std::string& model);
// What a user's name of a model stands for: of "org/name", and of a directory of the cache, the
// snapshot that is there (refs/main, or the only one); of a directory whose only model is a GGUF
// file, that file. Any other name stays what it is; RequireModel judges it.
std::string ResolveModel(const std::string& model);

}  // namespace nibble
