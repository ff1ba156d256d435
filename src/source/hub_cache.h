// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace nibble {

// The directory of files that can be made again: XDG_CACHE_HOME, or ~/.cache; "" where neither is
// an absolute path.
std::string UserCache();
// The directory of files that a user would miss little, such as histories: XDG_STATE_HOME, or
// ~/.local/state.
std::string UserState();
// The directory where Hugging Face's tools keep downloads: HF_HUB_CACHE, or hub in HF_HOME, or
// huggingface/hub in the user's cache.
std::string HubCache();
// Returns whether a name has the form "org/name", as models have on the Hub.
bool IsHubName(const std::string& model);
// The path that a user's name of a model stands for: for "org/name" or a directory of the cache,
// its snapshot (refs/main, or the only one); for a directory whose only model is a GGUF file, that
// file. Any other name stays as it is; RequireModel judges it.
std::string ResolveModel(const std::string& model);

}  // namespace nibble
