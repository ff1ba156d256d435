// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_groups.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace nibble {
namespace {

constexpr int64_t kMaxGroups = 8;  // each has a table of its own in every sequence
constexpr int64_t kPagePart = 64;  // bytes that every part of a page is a multiple of

using Reach = KvGroups::Reach;

struct Sized {
  int64_t layer, bytes;  // in a page
};
using SortedLayers = std::map<Reach, std::vector<Sized>>;

// The layers of each reach, the largest first.
SortedLayers SortLayers(const ModelConfig& config, std::span<const KvSpec> caches) {
  SortedLayers sorted;
  for (int64_t i = 0; i < config.layers; ++i) {
    if (!config.spec(i).owns_kv()) continue;
    const int64_t stated = config.spec(i).sliding_window;
    const int64_t window = stated < config.context ? stated : 0;
    const KvSpec& cache = caches[static_cast<size_t>(i)];
    sorted[{false, window}].push_back({i, cache.page_bytes()});
    if (cache.recent_bits > 0) sorted[{true, 0}].push_back({i, cache.Recent().page_bytes()});
  }
  for (auto& [reach, layers] : sorted) {
    std::ranges::stable_sort(layers, std::greater(), &Sized::bytes);
  }
  return sorted;
}

int64_t UsualTokens(const Reach& reach) {
  return reach.recent ? kMaxRecentPages * kPageTokens : nibble::UsualTokens(reach.window);
}

// The place of each layer, in the first group that has room for it.
std::vector<KvGroups::Place> Pack(std::span<const Sized> layers, int64_t page_bytes) {
  std::vector<KvGroups::Place> places;
  std::vector<int64_t> ends;  // of what lies in each group
  for (const Sized& layer : layers) {
    auto end = std::ranges::find_if(
        ends, [&](int64_t taken) { return taken + layer.bytes <= page_bytes; });
    if (end == ends.end()) end = ends.insert(end, 0);
    places.push_back({end - ends.begin(), *end});
    *end += layer.bytes;
  }
  return places;
}

int64_t Sum(std::span<const Sized> layers) {
  int64_t sum = 0;
  for (const Sized& layer : layers) sum += layer.bytes;
  return sum;
}

int64_t GroupsOf(std::span<const KvGroups::Place> places) {
  return 1 + std::ranges::max(places, {}, &KvGroups::Place::group).group;
}

// The size for which a text of some length takes the fewest bytes, where one more group, which
// costs a table, counts as a fiftieth of all; of those the largest. A page holds a whole share of
// the layers of some window, or a number of the largest ones.
int64_t BestPageBytes(const SortedLayers& sorted) {
  int64_t unit = 0, max = 0;
  std::set<int64_t> sizes;
  for (const auto& [reach, layers] : sorted) {
    const int64_t sum = Sum(layers);
    unit = std::max(unit, layers[0].bytes), max = std::max(max, sum);
    for (int64_t share = 1; share <= std::ssize(layers); ++share) {
      sizes.insert((sum / share + kPagePart - 1) / kPagePart * kPagePart);
    }
  }
  for (int64_t bytes = unit; bytes < max + unit; bytes += unit) sizes.insert(bytes);
  double min = 0;
  int64_t best = 0;
  for (auto bytes = sizes.lower_bound(unit); bytes != sizes.end(); ++bytes) {
    int64_t groups = 0, tokens = 0;
    for (const auto& [reach, layers] : sorted) {
      // There are no fewer than this, and not many more where they are few.
      const int64_t fewest = Sum(layers) / *bytes;
      const int64_t own = fewest > kMaxGroups ? fewest : GroupsOf(Pack(layers, *bytes));
      groups += own;
      tokens += own * UsualTokens(reach);
    }
    if (groups > kMaxGroups && *bytes < max) continue;
    const double cost = static_cast<double>(*bytes) * static_cast<double>(tokens * (50 + groups));
    if (best > 0 && cost > min) continue;
    min = cost, best = *bytes;
  }
  return best;
}

}  // namespace

KvGroups::KvGroups(const KvSpec& kv, int64_t layers)
    : page_bytes_(layers * kv.page_bytes()),
      reaches_{{}},
      caches_(static_cast<size_t>(layers), kv) {
  for (int64_t i = 0; i < layers; ++i) places_.push_back({0, i * kv.page_bytes()});
  if (kv.recent_bits == 0) return;
  const int64_t bytes = kv.Recent().page_bytes();
  page_bytes_ = layers * bytes;
  reaches_.push_back({true, 0});
  for (int64_t i = 0; i < layers; ++i) recent_places_.push_back({1, i * bytes});
}

KvGroups::KvGroups(const ModelConfig& config, std::span<const KvSpec> caches)
    : places_(static_cast<size_t>(config.layers)),
      recent_places_(places_),
      caches_(caches.begin(), caches.end()) {
  const auto sorted = SortLayers(config, caches);
  page_bytes_ = BestPageBytes(sorted);
  for (const auto& [reach, layers] : sorted) {
    std::vector<Place>& places = reach.recent ? recent_places_ : places_;
    const std::vector<Place> packed = Pack(layers, page_bytes_);
    for (size_t i = 0; i < layers.size(); ++i) {
      places[static_cast<size_t>(layers[i].layer)] = {count() + packed[i].group, packed[i].offset};
    }
    reaches_.resize(reaches_.size() + static_cast<size_t>(GroupsOf(packed)), reach);
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    const LayerSpec spec = config.spec(i);
    if (spec.owns_kv()) continue;
    places_[static_cast<size_t>(i)] = place(spec.kv_layer);
    recent_places_[static_cast<size_t>(i)] = recent_place(spec.kv_layer);
  }
}

int64_t KvGroups::FirstPage(int64_t group, int64_t tokens) const {
  const auto [recent, window] = reach(group);
  if (recent) return std::max<int64_t>(0, tokens / kPageTokens - kRecentPages);
  return window == 0 ? 0 : std::max<int64_t>(0, tokens - window + 1) / kPageTokens;
}

int64_t KvGroups::MaxPages(int64_t group, int64_t pages, int64_t step) const {
  const auto [recent, window] = reach(group);
  // The tokens that are read may begin and end inside a page.
  if (recent) return std::min(pages, PagesOf(step) + kRecentPages + 1 + kept_pages(group));
  return window == 0 ? pages : std::min(pages, PagesOf(window - 1 + step) + 1);
}

int64_t KvGroups::MaxPages(int64_t pages, int64_t step) const {
  int64_t max = 0;
  for (int64_t g = 0; g < count(); ++g) max += MaxPages(g, pages, step);
  return max;
}

}  // namespace nibble
