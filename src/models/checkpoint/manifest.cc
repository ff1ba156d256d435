// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/manifest.h"

#include <filesystem>

#include "base/json.h"
#include "io/atomic_file.h"
#include "io/publish.h"
#include "io/sha256.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::string PathOf(const std::string& directory, const std::string& name) {
  return (fs::path(directory) / name).string();
}

}  // namespace

Manifest ReadManifest(const std::string& directory) {
  const std::string where = PathOf(directory, kManifestName);
  const Json files = JsonGet<Json>(ReadJsonFile(where), "files", where);
  Manifest manifest;
  for (const auto& [name, file] : files.items()) {
    if (fs::path(name).filename() != name) Fail("{}: \"{}\" is not a file name", where, name);
    manifest[name] = {JsonGet<uint64_t>(file, "bytes", where),
                      JsonGet<std::string>(file, "sha256", where)};
  }
  return manifest;
}

void WriteManifest(const std::string& directory, const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest) {
    files[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
  }
  WriteFileAtomic(PathOf(directory, kManifestName), Json{{"files", files}}.dump(2) + "\n");
}

FileDigest DigestFile(const std::string& path) {
  return {fs::file_size(path), Sha256File(path)};
}

Manifest DigestFiles(const std::string& directory) {
  Manifest manifest;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && !IsWritersOwn(name) && name != kManifestName) {
      manifest[name] = DigestFile(entry.path().string());
    }
  }
  return manifest;
}

void VerifyFile(const std::string& directory, const Manifest& manifest, const std::string& name) {
  const auto listed = manifest.find(name);
  if (listed == manifest.end()) {
    Fail("{}: not listed in manifest.json", PathOf(directory, name));
  }
  const auto& [bytes, sha256] = listed->second;
  const std::string path = PathOf(directory, name);
  if (!fs::is_regular_file(path)) Fail("{}: listed in manifest.json but missing", path);
  if (fs::file_size(path) != bytes || Sha256File(path) != sha256) {
    Fail("{}: differs from manifest.json; copy the checkpoint again", path);
  }
}

int64_t VerifyManifest(const std::string& directory) {
  const Manifest manifest = ReadManifest(directory);
  for (const auto& [name, file] : manifest) VerifyFile(directory, manifest, name);
  return static_cast<int64_t>(manifest.size());
}

}  // namespace nibble
