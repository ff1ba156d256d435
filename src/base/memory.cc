// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"

#include <fstream>
#include <string>

namespace nibble {

std::optional<uint64_t> AvailableMemory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  uint64_t kilobytes = 0;
  while (in >> key >> kilobytes >> unit) {
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return std::nullopt;
}

}  // namespace nibble
