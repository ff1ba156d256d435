// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_groups.h"

#include <algorithm>
#include <map>

namespace nibble {
namespace {

constexpr int64_t kMostGroups = 8;  // each has a table of its own in every sequence

int64_t GroupsOf(int64_t layers, int64_t size) {
  return (layers + size - 1) / size;
}

}  // namespace

KvGroups::KvGroups(const ModelConfig& config) : layers_(config.layers) {
  std::map<int64_t, std::vector<int64_t>> layers;  // by window
  for (int64_t i = 0; i < config.layers; ++i) {
    const int64_t window = config.spec(i).sliding_window;
    layers[window < config.context ? window : 0].push_back(i);
  }
  if (layers.size() > 1) {
    // The size that leaves the fewest places empty, and of those the largest.
    int64_t fewest = 0;
    for (int64_t size = 1; size <= config.layers; ++size) {
      int64_t groups = 0;
      for (const auto& [window, members] : layers) {
        groups += GroupsOf(static_cast<int64_t>(members.size()), size);
      }
      const bool first = fewest == 0;
      if (groups > kMostGroups || (!first && groups * size > fewest)) continue;
      fewest = groups * size;
      layers_ = size;
    }
  }
  places_.resize(static_cast<size_t>(config.layers));
  for (const auto& [window, members] : layers) {
    for (size_t i = 0; i < members.size(); ++i) {
      const int64_t index = static_cast<int64_t>(i) % layers_;
      if (index == 0) windows_.push_back(window);
      places_[static_cast<size_t>(members[i])] = {count() - 1, index};
    }
  }
}

int64_t KvGroups::FirstPage(int64_t group, int64_t tokens) const {
  const int64_t window = windows_[static_cast<size_t>(group)];
  return window == 0 ? 0 : std::max<int64_t>(0, tokens - window + 1) / kPageTokens;
}

int64_t KvGroups::MostPages(int64_t group, int64_t pages, int64_t step) const {
  const int64_t window = windows_[static_cast<size_t>(group)];
  // They may begin and end inside a page.
  return window == 0 ? pages : std::min(pages, PagesOf(window - 1 + step) + 1);
}

int64_t KvGroups::MostPages(int64_t pages, int64_t step) const {
  int64_t most = 0;
  for (int64_t g = 0; g < count(); ++g) most += MostPages(g, pages, step);
  return most;
}

}  // namespace nibble
