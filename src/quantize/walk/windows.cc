// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/windows.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/rng.h"

namespace nibble {
namespace {

std::vector<int64_t> RandomStarts(int64_t tokens, int64_t count, int64_t context, uint64_t seed) {
  constexpr uint64_t kStream = 1u << 20;  // far from the streams of the rotation's layers
  Rng rng(seed, kStream);
  std::vector<int64_t> starts;
  for (int64_t w = 0; w < count; ++w) {
    starts.push_back(static_cast<int64_t>(rng.Below(static_cast<uint64_t>(tokens - context + 1))));
  }
  return starts;
}

}  // namespace

std::vector<int32_t> RandomWindows(const std::vector<int32_t>& ids, int64_t count, int64_t context,
                                   uint64_t seed, const std::string& where) {
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens < context) {
    Fail("{}: {} tokens, a calibration window has {}; pass a longer text or a smaller --context",
         where, tokens, context);
  }
  std::vector<int32_t> windows;
  for (const int64_t start : RandomStarts(tokens, count, context, seed)) {
    windows.insert(windows.end(), ids.begin() + start, ids.begin() + start + context);
  }
  return windows;
}

std::vector<std::vector<int32_t>> UnseenWindows(const std::vector<int32_t>& ids, int64_t count,
                                                int64_t context, uint64_t seed, int64_t wanted,
                                                int64_t length) {
  const auto tokens = static_cast<int64_t>(ids.size());
  std::vector<bool> seen(ids.size());
  if (count > 0 && tokens >= context) {
    for (const int64_t start : RandomStarts(tokens, count, context, seed)) {
      std::fill_n(seen.begin() + start, context, true);
    }
  }
  std::vector<std::vector<int32_t>> unseen;
  for (int64_t first = 0; first + length <= tokens;) {
    const auto begin = seen.begin() + first;
    const auto last =
        std::find(std::reverse_iterator(begin + length), std::reverse_iterator(begin), true);
    if (last.base() != begin) {
      first = last.base() - seen.begin();  // behind what was seen
      continue;
    }
    unseen.emplace_back(ids.begin() + first, ids.begin() + first + length);
    first += length;
  }
  // The kept windows are spread evenly over the whole text.
  const auto found = static_cast<int64_t>(unseen.size()), kept = std::min(wanted, found);
  for (int64_t i = 0; i < kept; ++i) {
    std::swap(unseen[static_cast<size_t>(i)], unseen[static_cast<size_t>(i * found / kept)]);
  }
  unseen.resize(static_cast<size_t>(kept));
  return unseen;
}

}  // namespace nibble
