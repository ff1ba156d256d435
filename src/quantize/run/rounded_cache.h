// SPDX-License-Identifier: Apache-2.0
// Keeps what a float model was rounded to while it was loaded, for the next start: a directory of
// shards under $XDG_CACHE_HOME/nibble/rounded, or ~/.cache/nibble/rounded, for each model and plan.
// It stands for the model's files as they were then, and may be removed at any time.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "io/publish.h"
#include "models/checkpoint/packed_checkpoint.h"
#include "models/network.h"

namespace nibble {

class RoundedCache {
 public:
  RoundedCache(const Network& source, const Plan& plan);

  // The directory for this model and plan; empty where there is no home directory to keep anything
  // in.
  const std::string& path() const { return path_; }

  // The tensors that an earlier start kept; null if there are none, or if they come from other
  // files.
  std::unique_ptr<TensorStore> Find() const;

  // Begins to write anew. From here to Publish, errors end the writing and nothing else.
  void Begin();
  // Writes a shard on a thread of its own; `tensors` own their bytes, or `source` does.
  void Save(const std::string& shard, std::vector<NamedTensor> tensors);
  // Makes what was saved the entry, and removes entries whose models are gone. Returns why nothing
  // is kept, or "".
  std::string Publish();

 private:
  std::string partial() const { return path_ + ".partial"; }
  template <typename Work>
  void Try(const Work& work);

  std::string path_;
  Json identity_;
  int64_t layers_;
  std::map<std::string, std::string> metadata_;
  uint64_t source_bytes_;
  std::string failure_;
  std::unique_ptr<DirectoryLock> lock_;
  std::future<void> writing_;
};

}  // namespace nibble
