// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/rounded_cache.h"

#include <filesystem>

#include "io/atomic_file.h"
#include "io/sha256.h"
#include "source/hub_cache.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// The folder of all entries; empty: there is none.
fs::path Folder() {
  const std::string cache = UserCache();
  return cache.empty() ? fs::path() : fs::path(cache) / "nibble/rounded";
}

// A file as it is now: a changed one has another size or time.
Json FileState(const fs::path& path) {
  return {{"path", path.string()},
          {"bytes", fs::file_size(path)},
          {"time", fs::last_write_time(path).time_since_epoch().count()}};
}

bool IsGone(const Json& identity) {
  for (const Json& file : identity.at("files")) {
    if (!fs::exists(file.at("path").get<std::string>())) return true;
  }
  return false;
}

// An entry that cannot be read stays: it may not be ours.
void RemoveEntriesOfLostModels(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    try {
      if (!IsGone(ReadJsonFile((entry.path() / kProvenanceName).string()))) continue;
      RemoveKnownFiles(entry.path().string(), IsCheckpointFile);
    } catch (const std::exception&) {
    }
  }
}

}  // namespace

RoundedCache::RoundedCache(const Network& source, const Plan& plan)
    : layers_(source.config.layers),
      metadata_({{kPlanDigestKey, PlanDigest(plan)}}),
      source_bytes_(source.store->total_bytes()) {
  const fs::path folder = Folder();
  if (folder.empty()) return;
  std::vector<Json> files;
  std::string key = metadata_.at(kPlanDigestKey);
  for (const std::string& path : source.store->paths()) {
    files.push_back(FileState(fs::canonical(path)));
    key += files.back().at("path").get<std::string>() + '\n';
  }
  identity_ = {{"nibble_version", NIBBLE_VERSION},
               {"config", Sha256Text(source.config_json.dump())},
               {"files", files}};
  const fs::path model = fs::canonical(source.directory).filename();
  path_ = (folder / (model.string() + "-" + Sha256Text(key).substr(0, 16))).string();
}

std::unique_ptr<TensorStore> RoundedCache::Find() const {
  const fs::path identity = fs::path(path_) / kProvenanceName;
  if (path_.empty() || !fs::exists(identity)) return nullptr;
  if (ReadJsonFile(identity.string()) != identity_) return nullptr;
  return std::make_unique<TensorStore>(path_);
}

// Runs `work` unless something has failed; the first failure is kept to be named.
template <typename Work>
void RoundedCache::Try(const Work& work) {
  if (path_.empty() || !failure_.empty()) return;
  try {
    work();
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

void RoundedCache::Begin() {
  Try([&] {
    CreateDirectories(partial());
    lock_ = std::make_unique<DirectoryLock>(partial());
    // Eight bits are up to twice the bytes of a source that has four.
    if (const auto free = fs::space(partial()).available; free < 4 * source_bytes_) {
      Fail("{} bytes are left at {}", free, partial());
    }
    RefuseUnknownFiles(partial(), IsCheckpointFile);
  });
}

void RoundedCache::Save(const std::string& shard, std::vector<NamedTensor> tensors) {
  Try([&] {
    if (writing_.valid()) writing_.get();
    const std::string path = (fs::path(partial()) / shard).string();
    writing_ = std::async(std::launch::async, [path, tensors = std::move(tensors), this] {
      WriteShard(path, tensors, metadata_);
    });
  });
}

std::string RoundedCache::Publish() {
  Try([&] {
    if (writing_.valid()) writing_.get();
    WriteIndex(partial(), layers_);
    WriteFileAtomic((fs::path(partial()) / kProvenanceName).string(), identity_.dump(2) + "\n");
    PublishDirectory(partial(), path_, true, IsCheckpointFile);
    RemoveEntriesOfLostModels(Folder());
  });
  if (!failure_.empty() && lock_) RemoveKnownFiles(partial(), IsCheckpointFile);
  lock_ = nullptr;
  return failure_;
}

}  // namespace nibble
