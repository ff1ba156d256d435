// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_groups.h"

#include <algorithm>
#include <map>
#include <utility>

namespace nibble {
namespace {

constexpr int64_t kMostGroups = 8;  // each has a table of its own in every sequence

// Layers of one window and of heads alike.
struct Alike {
  int64_t window, bytes;  // of one layer in a page
  std::vector<int64_t> layers = {};

  int64_t InPage(int64_t page_bytes) const { return page_bytes / bytes; }
  int64_t Groups(int64_t page_bytes) const {
    const int64_t size = InPage(page_bytes);
    return (static_cast<int64_t>(layers.size()) + size - 1) / size;
  }
};

std::vector<Alike> SortLayers(const ModelConfig& config, std::span<const KvSpec> caches) {
  std::map<std::pair<int64_t, int64_t>, Alike> sorted;
  for (int64_t i = 0; i < config.layers; ++i) {
    if (!config.spec(i).owns_kv()) continue;
    const int64_t stated = config.spec(i).sliding_window;
    const int64_t window = stated < config.context ? stated : 0;
    const int64_t bytes = caches[static_cast<size_t>(i)].page_bytes();
    sorted.try_emplace({window, bytes}, Alike{window, bytes}).first->second.layers.push_back(i);
  }
  std::vector<Alike> all;
  for (auto& [key, alike] : sorted) all.push_back(std::move(alike));
  return all;
}

// The size that leaves the fewest bytes empty, and of those the largest.
int64_t BestPageBytes(const std::vector<Alike>& all) {
  int64_t fewest = 0, best = 0, unit = 0, most = 0;
  for (const Alike& alike : all) {
    unit = std::max(unit, alike.bytes);
    most = std::max(most, alike.bytes * static_cast<int64_t>(alike.layers.size()));
  }
  for (int64_t bytes = unit; bytes < most + unit; bytes += unit) {
    int64_t groups = 0;
    for (const Alike& alike : all) groups += alike.Groups(bytes);
    const bool crowded = groups > kMostGroups && bytes < most;
    if (crowded || (best > 0 && groups * bytes > fewest)) continue;
    fewest = groups * bytes, best = bytes;
  }
  return best;
}

}  // namespace

KvGroups::KvGroups(const KvSpec& kv, int64_t layers)
    : page_bytes_(layers * kv.page_bytes()), windows_{0} {
  for (int64_t i = 0; i < layers; ++i) places_.push_back({0, i * kv.page_bytes()});
}

KvGroups::KvGroups(const ModelConfig& config, std::span<const KvSpec> caches)
    : places_(static_cast<size_t>(config.layers)) {
  const std::vector<Alike> all = SortLayers(config, caches);
  page_bytes_ = BestPageBytes(all);
  for (const Alike& alike : all) {
    for (size_t i = 0; i < alike.layers.size(); ++i) {
      const int64_t index = static_cast<int64_t>(i) % alike.InPage(page_bytes_);
      if (index == 0) windows_.push_back(alike.window);
      places_[static_cast<size_t>(alike.layers[i])] = {count() - 1, index * alike.bytes};
    }
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    const LayerSpec spec = config.spec(i);
    if (!spec.owns_kv()) places_[static_cast<size_t>(i)] = place(spec.kv_layer);
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
