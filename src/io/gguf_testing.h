// SPDX-License-Identifier: Apache-2.0
// GGUF files made by the letter of the format, right or wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class GgufBuilder {
 public:
  template <typename T>
  static std::string Raw(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string Text(std::string_view text) {
    return Raw<uint64_t>(text.size()) + std::string(text);
  }

  // Any type and bytes.
  void Key(std::string_view name, uint32_t type, const std::string& value) {
    keys_ += Text(name) + Raw(type) + value;
    ++key_count_;
  }
  void Integer(std::string_view name, uint32_t value) { Key(name, 4, Raw(value)); }
  void Real(std::string_view name, float value) { Key(name, 6, Raw(value)); }
  void Bool(std::string_view name, bool value) { Key(name, 7, Raw<uint8_t>(value)); }
  void String(std::string_view name, std::string_view value) { Key(name, 8, Text(value)); }
  void Strings(std::string_view name, const std::vector<std::string>& values) {
    std::string items;
    for (const std::string& value : values) items += Text(value);
    Key(name, 9, Raw<uint32_t>(8) + Raw<uint64_t>(values.size()) + items);
  }
  template <typename T>
  void Numbers(std::string_view name, uint32_t type, const std::vector<T>& values) {
    std::string items;
    for (const T value : values) items += Raw(value);
    Key(name, 9, Raw(type) + Raw<uint64_t>(values.size()) + items);
  }

  // Extents slowest first.
  void Tensor(std::string_view name, std::vector<uint64_t> shape, uint32_t type,
              const std::string& data) {
    Info(name, shape, type, data_.size());
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
  }
  void Info(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
            uint64_t offset) {
    infos_ += Text(name) + Raw(static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) infos_ += Raw(shape[i]);
    infos_ += Raw(type) + Raw(offset);
    ++tensor_count_;
  }

  std::string Bytes() const {
    std::string file =
        "GGUF" + Raw<uint32_t>(3) + Raw(tensor_count_) + Raw(key_count_) + keys_ + infos_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }
  void Write(const std::string& path) const { WriteBytes(path, Bytes()); }
  static void WriteBytes(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::string keys_, infos_, data_;
  uint64_t key_count_ = 0, tensor_count_ = 0;
};

}  // namespace nibble
