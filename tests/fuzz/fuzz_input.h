// SPDX-License-Identifier: Apache-2.0
// Shared by the fuzz targets: the results that a target may have, inputs of several parts, and a
// directory for inputs that are read from files.
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nibble {

// use(input) may give a value or throw an Error of one line without control characters; anything
// else ends the process.
template <typename Use>
int FuzzOne(const uint8_t* data, size_t size, const Use& use) {
  try {
    use(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const Error& error) {
    const std::string_view line = error.what();
    const auto is_control = [](char c) { return (c >= 0 && c < ' ') || c == 0x7F; };
    NIBBLE_CHECK(!line.empty() && std::ranges::none_of(line, is_control), "{}", line);
  }
  return 0;
}

// Takes the first line off, so that one input can hold a JSON value and a text, or two values.
inline std::string_view TakeLine(std::string_view* rest) {
  const std::string_view line = rest->substr(0, rest->find('\n'));
  rest->remove_prefix(std::min(line.size() + 1, rest->size()));
  return line;
}

// A directory of this process in TMPDIR.
class ScratchDirectory {
 public:
  ScratchDirectory() : path_(std::filesystem::temp_directory_path() / "nibble_fuzz_XXXXXX") {
    NIBBLE_CHECK(mkdtemp(path_.data()) != nullptr, "{}", path_);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, std::string_view bytes) const {
    std::ofstream file(path_ + "/" + name, std::ios::binary);
    file << bytes;
    NIBBLE_CHECK(file.flush(), "{}/{}", path_, name);
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

}  // namespace nibble
