// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace nibble {

// The state of a piece of long work.
struct ProgressState {
  std::string title, unit;  // "quantize", "layer tokens"
  std::string detail;       // what is being worked on, or nothing
  double done = 0, total = 0;
  double rate = 0;     // units per second; 0 = not known yet
  double eta = 0;      // seconds to the end, of a job in stages to that of its last one
  bool ended = false;  // the last call for this piece, done or not
};

// Called on the thread that works, several times a second at most. An exception ends the work.
using ProgressCallback = std::function<void(const ProgressState&)>;

}  // namespace nibble
