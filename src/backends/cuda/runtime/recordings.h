// SPDX-License-Identifier: Apache-2.0
// Recorded graphs of a decode step's kernels. The launches of a step follow from its ops, the shape
// of its batch and the addresses of its memory, so a graph may be played again until some is freed.
// Kernels find the pages of a growing cache through a table that is written before each step.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>

namespace nibble::cuda {

// The ops (Backend::OpsId) and the shape of a batch of one token a sequence.
struct RecordingKey {
  uint64_t ops = 0;
  int64_t sequences = 0, rows = 0;  // rows: of the tensors
  int64_t context = 0;              // a bound on the keys of a sequence
  int64_t offset = 0;               // SequenceSlice::offset of the first op

  auto operator<=>(const RecordingKey&) const = default;
};

// Graph: owns one, or is empty.
template <typename Graph>
class Recordings {
 public:
  struct Step {
    std::function<void()> launch;              // enqueues the kernels
    std::function<Graph()> record;             // makes a graph of them; must not allocate
    std::function<void(const Graph&)> replay;  // enqueues the graph
  };

  // `frees`: how often memory was freed up to now. After a change, the first call for a key
  // launches the kernels, so that all memory gets as large as it must be; the second records them,
  // and it and all others play the graph.
  void Run(const RecordingKey& key, uint64_t frees, const Step& step) {
    if (frees != frees_) graphs_.clear();
    frees_ = frees;
    const auto found = graphs_.find(key);
    if (found == graphs_.end()) {
      step.launch();
      if (graphs_.size() == kMax) graphs_.clear();
      graphs_.try_emplace(key);
      return;
    }
    if (!found->second) found->second = step.record();
    step.replay(found->second);
  }

 private:
  static constexpr size_t kMax = 32;  // each takes some megabytes of a GPU

  std::map<RecordingKey, Graph> graphs_;  // empty: launched once
  uint64_t frees_ = 0;
};

}  // namespace nibble::cuda
