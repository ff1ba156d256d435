// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace nibble {

std::string ReadFile(const std::string& path, uint64_t max_bytes) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) Fail("{}: no such file", path);
  const uint64_t size = std::filesystem::file_size(path, ec);
  if (ec) Fail("{}: {}", path, ec.message());
  if (size > max_bytes) Fail("{}: {} bytes, at most {} are accepted", path, size, max_bytes);
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(size))) {
    Fail("{}: cannot be read ({})", path, std::strerror(errno));
  }
  return text;
}

}  // namespace nibble
