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

  // What can be shown now. Nothing follows a stop string, which is not shown itself.
  std::string Push(std::string_view piece);
  std::string Flush();  // what was held back, at the text's end
  bool found() const { return found_; }
  const std::string& which() const { return which_; }  // of those found

 private:
  std::vector<std::string> stops_;
  std::string held_, which_;
  bool found_ = false;
};

}  // namespace nibble
