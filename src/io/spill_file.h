// SPDX-License-Identifier: Apache-2.0
// Memory that lies in a file, for what is needed again but not soon: its pages may leave memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "io/fd.h"

namespace nibble {

class SpillFile {
 public:
  // A file without a name in `directory`, gone with the process whatever ends it. Throws where the
  // file system has none.
  explicit SpillFile(const std::string& directory);
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;
  ~SpillFile();

  // All zero, at the start of a page; not outliving this object. The disk is reserved: writing to
  // it cannot fail. Throws where there is too little.
  AlignedBytes Allocate(size_t bytes);
  Allocator allocator() {
    return [this](size_t bytes) { return Allocate(bytes); };
  }
  // Whole pages of `bytes` of an allocation leave the process' memory until they are touched again.
  static void Rest(std::span<const std::byte> bytes);

 private:
  std::string directory_;
  Fd fd_;
  std::vector<std::span<std::byte>> mappings_;
};

}  // namespace nibble
