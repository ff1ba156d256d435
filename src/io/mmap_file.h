// SPDX-License-Identifier: Apache-2.0
// A regular file mapped read-only into memory: weights are served from the page cache, never
// copied. The size is the one at opening; a file that another program truncates later raises SIGBUS
// on access, so a checkpoint in use must be replaced by rename and not rewritten in place.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace nibble {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }  // empty for an empty file
  const std::string& path() const { return path_; }
  // Gives back the memory of pages read so far. They stay in the system's page cache and come back
  // when they are touched again; bytes() remains valid.
  void DropPages() const;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace nibble
