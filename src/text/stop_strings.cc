// SPDX-License-Identifier: Apache-2.0
#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace nibble {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string StopStrings::Push(std::string_view piece) {
  if (found_) return "";
  held_ += piece;
  size_t end = held_.size(), shown = held_.size();
  for (const std::string& stop : stops_) {
    if (const size_t at = held_.find(stop); at < end) {
      end = at;
      which_ = stop;
    }
    for (size_t at = held_.size() - std::min(held_.size(), stop.size() - 1); at < shown; ++at) {
      if (stop.starts_with(std::string_view(held_).substr(at))) shown = at;
    }
  }
  found_ = end < held_.size();
  std::string out = held_.substr(0, found_ ? end : shown);
  held_.erase(0, found_ ? held_.size() : shown);
  return out;
}

std::string StopStrings::Flush() {
  return std::exchange(held_, "");
}

}  // namespace nibble
