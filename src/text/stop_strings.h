// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Ends a text at the first of some strings, which may be cut anywhere between pieces. What could be
// the beginning of one is held back.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops = {});  // empty ones are left out

  // Returns the text that can be shown now. A stop string and all behind it are never shown.
  std::string Push(std::string_view piece);
  std::string Flush();  // what was held back, at the text's end
  bool found() const { return found_; }
  const std::string& which() const { return which_; }  // the stop string that was found

 private:
  std::vector<std::string> stops_;
  std::string held_, which_;
  bool found_ = false;
};

}  // namespace nibble
