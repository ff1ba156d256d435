// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this folder: a temporary directory, and files made by the letter of the
// safetensors format (independent of SafetensorsWriter).
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/error_testing.h"

namespace nibble {

class TemporaryDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "nibble_io_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string Path(const std::string& name) const { return (root_ / name).string(); }

  std::filesystem::path root_;
};

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// A file with any length field, any header and any amount of data.
inline std::string FileOf(uint64_t length, const std::string& header, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(length >> (8 * i)));
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<char>(i * 37 + 11));
  return file;
}
inline std::string FileOf(const std::string& header, size_t data_bytes) {
  return FileOf(header.size(), header, data_bytes);
}

// A file whose header is `fields` in braces.
inline std::string FileWith(const std::string& fields, size_t data_bytes) {
  return FileOf(fmt::format("{{{}}}", fields), data_bytes);
}

// JSON of one tensor: TensorJson("a", "F32", "[2]", "[0,8]").
inline std::string TensorJson(const std::string& name, const std::string& dtype,
                              const std::string& shape, const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

// A name for the log, the bytes, and what the message must contain besides the file name.
struct Malformed {
  std::string what, file, message;
};

}  // namespace nibble
