// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "io/safetensors.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr char kSingleName[] = "model.safetensors";
constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 32 << 20;  // kMaxTensors with names of 60 bytes
constexpr size_t kMaxShards = 1 << 13;         // a layer each

bool IsBelow(const fs::path& path, const fs::path& directory) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first ==
         directory.end();
}

}  // namespace

std::string PathInside(const std::string& directory, const std::string& name) {
  const std::string path = (fs::path(directory) / name).string();
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    Fail("{}/{}: \"{}\" is not a plain file name", directory, kIndexName, name);
  }
  // Links are resolved only to see where they lead.
  std::error_code missing, error;
  const fs::path resolved = fs::canonical(path, missing);
  const fs::path root = fs::canonical(directory, error);
  if (missing || error)
    Fail("{}: missing; is the download complete? ({})", path, missing.message());
  const fs::path snapshots = root.parent_path(), cache = snapshots.parent_path();
  const bool hugging_face_cache =
      snapshots.filename() == "snapshots" && cache.filename().string().starts_with("models--");
  if (!IsBelow(resolved, root) && !(hugging_face_cache && IsBelow(resolved, cache / "blobs"))) {
    Fail("{}: leads outside the model directory, to {}; `cp -rL` makes a copy without links", path,
         resolved.string());
  }
  return path;
}

TensorStore::TensorStore(const std::string& directory) : directory_(directory) {
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(fs::path(directory) / kSingleName, ignored))) {
    files_.emplace_back(PathInside(directory, kSingleName));
    tensors_ = files_.back().tensors();
    return;
  }
  if (!fs::exists(fs::symlink_status(fs::path(directory) / kIndexName, ignored))) {
    Fail("{}: neither {} nor {} is there", directory, kSingleName, kIndexName);
  }
  const std::string index = PathInside(directory, kIndexName);
  const auto weight_map = ParseSafetensorsIndex(ReadFile(index, kMaxIndexBytes), index);
  std::set<std::string_view> names;
  for (const auto& [name, shard] : weight_map) names.insert(shard);
  if (names.size() > kMaxShards) Fail("{}: over {} shards", index, kMaxShards);
  std::map<std::string, size_t> shards;  // file name -> position in files_
  size_t tensors = 0;                    // of all shards, in the index or not
  for (const auto& [name, shard] : weight_map) {
    const auto [it, first] = shards.emplace(shard, files_.size());
    if (first) {
      files_.emplace_back(PathInside(directory, shard));
      tensors += files_.back().tensors().size();
      if (tensors > kMaxTensors) Fail("{}: shards of over {} tensors", index, kMaxTensors);
    }
    const SafetensorsFile& file = files_[it->second];
    const auto tensor = file.tensors().find(name);
    if (tensor == file.tensors().end()) {
      Fail("{}: no tensor \"{}\", though {} says so", file.path(), name, kIndexName);
    }
    tensors_.insert(*tensor);
  }
}

const Tensor* TensorStore::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

const Tensor& TensorStore::Get(const std::string& name) const {
  const Tensor* view = Find(name);
  if (view == nullptr) Fail("{}: no tensor \"{}\"", directory_, name);
  return *view;
}

std::vector<std::string> TensorStore::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, view] : tensors_) names.push_back(name);
  return names;
}

std::vector<std::string> TensorStore::paths() const {
  std::vector<std::string> paths;
  for (const SafetensorsFile& file : files_) paths.push_back(file.path());
  for (const auto& file : mapped_) paths.push_back(file->path());
  return paths;
}

void TensorStore::DropPages() const {
  for (const SafetensorsFile& file : files_) file.DropPages();
  for (const auto& file : mapped_) file->DropPages();
}

uint64_t TensorStore::total_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, view] : tensors_) bytes += view.bytes();
  return bytes;
}

}  // namespace nibble
