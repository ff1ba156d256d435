// SPDX-License-Identifier: Apache-2.0
// The layout is that of huggingface_hub's "Understand caching" page:
//   hub/models--org--name/refs/main (a commit's name), .../snapshots/COMMIT/FILES
#include "source/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "source/model_source.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

fs::path Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The path in `variable`, or `at_home` below the home directory; only absolute paths count.
std::string UserDirectory(const char* variable, const char* at_home) {
  if (const fs::path path = Variable(variable); path.is_absolute()) return path.string();
  const fs::path home = Variable("HOME");
  return home.is_absolute() ? (home / at_home).string() : "";
}

// The snapshot of refs/main, or the only one; nothing if there is none or there are several.
std::optional<fs::path> Snapshot(const fs::path& repository) {
  std::error_code error;
  const fs::path snapshots = repository / "snapshots", main = repository / "refs/main";
  if (fs::is_regular_file(main, error)) {
    std::string commit = ReadFile(main.string(), 256);
    std::erase_if(commit, [](unsigned char c) { return std::isalnum(c) == 0; });
    if (!commit.empty() && fs::is_directory(snapshots / commit, error)) return snapshots / commit;
  }
  std::optional<fs::path> only;
  for (const auto& entry : fs::directory_iterator(snapshots, error)) {
    if (only) return std::nullopt;
    only = entry.path();
  }
  return only;
}

}  // namespace

std::string UserCache() {
  return UserDirectory("XDG_CACHE_HOME", ".cache");
}

std::string UserState() {
  return UserDirectory("XDG_STATE_HOME", ".local/state");
}

std::string HubCache() {
  if (const fs::path cache = Variable("HF_HUB_CACHE"); !cache.empty()) return cache.string();
  if (const fs::path home = Variable("HF_HOME"); !home.empty()) return (home / "hub").string();
  return (fs::path(UserCache()) / "huggingface/hub").string();
}

bool IsHubName(const std::string& model) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '/' || c == '-' || c == '_' || c == '.';
  };
  const size_t slash = model.find('/');
  return slash != model.npos && slash > 0 && slash == model.rfind('/') &&
         slash + 1 < model.size() && model[0] != '.' && std::ranges::all_of(model, plain);
}

std::string ResolveModel(const std::string& model) {
  std::error_code error;
  fs::path path = model;
  if (!fs::exists(path, error) && IsHubName(model)) {
    std::string folder = "models--" + model;
    folder.replace(folder.find('/'), 1, "--");
    path = fs::path(HubCache()) / folder;
  }
  if (!fs::is_directory(path, error)) return model;
  if (const auto snapshot = Snapshot(path)) path = *snapshot;
  if (fs::exists(path / "config.json", error)) return path.string();
  const std::vector<std::string> files = GgufModelsIn(path.string());
  return files.size() == 1 ? (path / files[0]).string() : path.string();
}

}  // namespace nibble
