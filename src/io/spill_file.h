// SPDX-License-Identifier: Apache-2.0
// Memory that lies in a file, for data that is needed again but not soon: its pages may leave RAM.
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
  // file system has no such files.
  explicit SpillFile(const std::string& directory);
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;
  ~SpillFile();

  // Returns memory filled with zeros, at the start of a page, which must not outlive this object.
  // Its disk space is reserved: writing to it cannot fail. Throws where there is too little.
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
