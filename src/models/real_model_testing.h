// SPDX-License-Identifier: Apache-2.0
// Trained models of people, for tests of what random weights do not show. They are in no package of
// the project: `tools/demo` fetches the first one.
#pragma once

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace nibble {

inline constexpr const char* kRealModels[] = {"SmolLM2-135M-Instruct.Q4_1.gguf",
                                              "gemma3-270m-q4-k-m.gguf"};

// The path of such a file: in the folder that NIBBLE_MODELS names, or where `tools/demo` keeps its
// own; empty: it is nowhere.
inline std::string RealModel(const std::string& name) {
  const auto variable = [](const char* key) -> std::filesystem::path {
    const char* const value = std::getenv(key);
    return value == nullptr ? "" : value;
  };
  std::filesystem::path cache = variable("XDG_CACHE_HOME");
  if (cache.empty()) cache = variable("HOME") / ".cache";
  for (const auto& folder : {variable("NIBBLE_MODELS"), cache / "nibble"}) {
    if (!folder.empty() && std::filesystem::exists(folder / name)) return folder / name;
  }
  return "";
}

// The name with only the characters that a test's name may have.
inline std::string RealModelTestName(std::string name) {
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
}

}  // namespace nibble
