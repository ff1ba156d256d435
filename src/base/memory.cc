// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace nibble {

std::optional<uint64_t> AvailableMemory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  uint64_t kilobytes = 0, limit = 0;
  while (key != "MemAvailable:") {
    if (!(in >> key >> kilobytes >> unit)) return std::nullopt;
  }
  uint64_t available = kilobytes * 1024;
  // The memory limit of a container, from either version of control groups; version 2 writes "max"
  // where there is no limit.
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (std::ifstream(path) >> limit) available = std::min(available, limit);
  }
  return available;
}

}  // namespace nibble
