// SPDX-License-Identifier: Apache-2.0
#include "source/pooling_document.h"

#include <filesystem>
#include <iterator>
#include <vector>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxBytes = 1 << 20;
// Keys in which files of sentence-transformers since 2019 say the mode; newer files name it.
constexpr std::pair<const char*, const char*> kFlags[] = {
    {"pooling_mode_cls_token", "cls"},
    {"pooling_mode_max_tokens", "max"},
    {"pooling_mode_mean_tokens", "mean"},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
    {"pooling_mode_weightedmean_tokens", "weightedmean"},
    {"pooling_mode_lasttoken", "lasttoken"}};
// The modes by the number in {architecture}.pooling_type.
constexpr const char* kGgufModes[] = {"none", "mean", "cls", "lasttoken", "rank"};

// The mode, or a list of modes, in the file in the pooling's folder.
Json Mode(const std::string& path) {
  const Json config = ReadJsonFile(path, kMaxBytes);
  if (const auto mode = JsonFind<Json>(config, "pooling_mode", path)) {
    if (mode->is_array()) return JsonAs<std::vector<std::string>>(*mode, path + ": pooling_mode");
    return JsonAs<std::string>(*mode, path + ": pooling_mode");
  }
  std::vector<std::string> modes;
  for (const auto& [key, mode] : kFlags) {
    if (JsonFind<bool>(config, key, path).value_or(false)) modes.emplace_back(mode);
  }
  if (modes.size() > 1) return modes;
  return modes.empty() ? "mean" : modes[0];
}

// The modules that modules.json lists.
struct Modules {
  std::string pooling;  // folder of the pooling; empty: there is none
  bool normalize = false;
  std::vector<std::string> others;
};

Modules ReadModules(const std::string& path) {
  const Json list = ReadJsonFile(path, kMaxBytes);
  if (!list.is_array()) Fail("{} must be an array", path);
  Modules modules;
  for (const Json& module : list) {
    const auto type = JsonGet<std::string>(module, "type", path);
    // Newer versions have the same modules in other packages; a model's own classes may do
    // anything.
    const bool known = type.starts_with("sentence_transformers.");
    const std::string name = known ? type.substr(type.rfind('.') + 1) : "";
    if (name == "Transformer") continue;
    if (name == "Normalize") {
      modules.normalize = true;
    } else if (name == "Pooling" && modules.pooling.empty()) {
      modules.pooling = JsonGet<std::string>(module, "path", path);
      const fs::path folder = modules.pooling;
      if (folder.empty() || folder == "." || folder == ".." || folder.has_parent_path()) {
        Fail("{}: \"{}\" is not the name of a folder", path, modules.pooling);
      }
    } else {
      modules.others.push_back(type);
    }
  }
  return modules;
}

}  // namespace

std::optional<Json> FindPooling(const std::string& directory) {
  const std::string list = directory + "/modules.json";
  const auto config = [&](const std::string& folder) {
    return fmt::format("{}/{}/config.json", directory, folder);
  };
  if (!fs::exists(list)) {
    const std::string usual = config("1_Pooling");
    if (!fs::exists(usual)) return std::nullopt;
    return Json{{"pooling_mode", Mode(usual)}, {"normalize", true}};
  }
  const Modules modules = ReadModules(list);
  Json pooling = {
      {"pooling_mode", modules.pooling.empty() ? "none" : Mode(config(modules.pooling))},
      {"normalize", modules.normalize}};
  if (!modules.others.empty()) pooling["modules"] = modules.others;
  return pooling;
}

std::optional<Json> FindGgufPooling(const GgufFile& file) {
  const auto architecture = file.FindString("general.architecture").value_or("");
  const std::string key = fmt::format("{}.pooling_type", architecture);
  const auto type = file.FindInteger(key);
  if (!type) return std::nullopt;
  if (*type < 0 || *type >= std::ssize(kGgufModes)) {
    Fail("{}: {} {} is not known; this build knows 0 to {}", file.path(), key, *type,
         std::ssize(kGgufModes) - 1);
  }
  return Json{{"pooling_mode", kGgufModes[*type]}, {"normalize", true}};
}

}  // namespace nibble
