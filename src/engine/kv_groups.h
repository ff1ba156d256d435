// SPDX-License-Identifier: Apache-2.0
// Groups of layers whose keys and values lie together in a page. A layer with a sliding window
// drops a text's older pages, so a page holds layers of one window. All pages have one size, so
// that what one group gives back serves any other. Models whose layers all see as much have one
// group.
//
// A layer without keys of its own has the place of the one whose keys it reads. The recent form of
// caches (KvSpec::recent_bits) lies in groups of its own, which keep a text's first page and its
// last ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/kv_format.h"
#include "models/config.h"

namespace nibble {

inline int64_t PagesOf(int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

// The tokens that a layer with this window (0: none) keeps of a text of usual length, for choices
// that depend on the length.
inline int64_t UsualTokens(int64_t window) {
  constexpr int64_t kTokens = 4096;
  return window == 0 ? kTokens : std::min(window, kTokens);
}

class KvGroups {
 public:
  // Groups for layers that are alike and see the whole text.
  KvGroups(const KvSpec& kv, int64_t layers);
  // `caches` has one entry for each layer.
  KvGroups(const ModelConfig& config, std::span<const KvSpec> caches);

  int64_t count() const { return std::ssize(reaches_); }
  int64_t page_bytes() const { return page_bytes_; }

  struct Place {
    int64_t group, offset;  // bytes from the beginning of a page
  };
  Place place(int64_t layer) const { return places_[static_cast<size_t>(layer)]; }
  // The place of the recent form of a layer that has one.
  Place recent_place(int64_t layer) const { return recent_places_[static_cast<size_t>(layer)]; }
  const KvSpec& cache(int64_t layer) const { return caches_[static_cast<size_t>(layer)]; }
  int64_t layers() const { return std::ssize(places_); }

  bool sees_all(int64_t group) const { return reach(group) == Reach{}; }
  // Returns whether a group holds the recent form, which can be made from the narrow one.
  bool recent(int64_t group) const { return reach(group).recent; }
  // Pages at the beginning of a text that a group keeps.
  int64_t kept_pages(int64_t group) const { return recent(group) ? 1 : 0; }
  // The first page of a group, apart from the kept ones, that is read behind `tokens` tokens.
  int64_t FirstPage(int64_t group, int64_t tokens) const;
  // Returns whether a page of a group is read behind `tokens` tokens.
  bool Reads(int64_t group, int64_t page, int64_t tokens) const {
    return page < kept_pages(group) || page >= FirstPage(group, tokens);
  }
  // The most pages that a group holds while a text of `pages` grows by `step` tokens at a time.
  int64_t MaxPages(int64_t group, int64_t pages, int64_t step) const;
  // The sum of these over all groups.
  int64_t MaxPages(int64_t pages, int64_t step) const;

  // Reach says how far back the layers of a group look.
  struct Reach {
    bool recent = false;
    int64_t window = 0;  // 0: all tokens
    auto operator<=>(const Reach&) const = default;
  };

 private:
  const Reach& reach(int64_t group) const { return reaches_[static_cast<size_t>(group)]; }

  int64_t page_bytes_ = 0;
  std::vector<Reach> reaches_;                 // of each group
  std::vector<Place> places_, recent_places_;  // of each layer
  std::vector<KvSpec> caches_;                 // of each layer
};

}  // namespace nibble
