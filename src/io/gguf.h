// SPDX-License-Identifier: Apache-2.0
// A GGUF file, version 3 (github.com/ggml-org/ggml, docs/gguf.md), little endian:
//   "GGUF" | u32 version | u64 tensors | u64 keys | keys | tensor infos | padding | data
//   key    = string name, u32 type, value; string = u64 length, bytes
//   tensor = string name, u32 dimensions, u64 extents (fastest first), u32 type, u64 offset
//
// The data and every tensor in it start at a multiple of general.alignment, without other gaps.
// Everything is checked at opening, before anything is allocated by a number of the file; a bad
// file throws nibble::Error. Tensors keep the mapping alive.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "io/mmap_file.h"
#include "tensor/tensor.h"

namespace nibble {

class GgufFile {
 public:
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const std::shared_ptr<const MappedFile>& file() const { return file_; }
  // Shapes as safetensors have them, slowest first.
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

  // The value of a key. A number that does not fit or another type is an error that names the key.
  bool Has(std::string_view key) const { return keys_.contains(key); }
  std::optional<bool> FindBool(std::string_view key) const;
  std::optional<int64_t> FindInteger(std::string_view key) const;
  std::optional<double> FindReal(std::string_view key) const;
  std::optional<std::string_view> FindString(std::string_view key) const;
  int64_t Integer(std::string_view key) const;
  // Arrays; empty if absent. Numbers take up to eight times the bytes that they have in the file:
  // an array of another count than `count` is an error before any number is read.
  std::vector<int64_t> Integers(std::string_view key, uint64_t count) const;
  uint64_t Count(std::string_view key) const;  // of an array
  std::vector<double> Reals(std::string_view key, uint64_t count) const;
  std::vector<std::string_view> Strings(std::string_view key) const;
  // All, and what stands under one whatever its type, to be shown: of a long list, its length.
  std::vector<std::string> Keys() const;
  Json Show(std::string_view key) const;

 private:
  struct Value {
    uint32_t type = 0;  // for an array, the type of its items
    bool array = false;
    uint64_t count = 1;
    std::span<const std::byte> bytes;  // all items, checked
  };
  class Reader;

  Value ReadValue(Reader& reader, const std::string& what) const;
  void ReadTensors(Reader& reader, uint64_t count);
  const Value* Find(std::string_view key, bool array) const;
  [[noreturn]] void Refuse(std::string_view key, std::string_view expected) const;
  // One item; nullopt if it has another type or does not fit.
  template <typename T>
  using At = std::optional<T> (GgufFile::*)(const Value& value, uint64_t index) const;
  std::optional<bool> BoolAt(const Value& value, uint64_t index) const;
  std::optional<int64_t> IntegerAt(const Value& value, uint64_t index) const;
  std::optional<double> RealAt(const Value& value, uint64_t index) const;
  Json JsonAt(const Value& value, uint64_t index) const;
  template <typename T>
  std::optional<T> One(std::string_view key, At<T> at, std::string_view expected) const;
  template <typename T>
  std::vector<T> Many(std::string_view key, uint64_t count, At<T> at,
                      std::string_view expected) const;

  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, Value, std::less<>> keys_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace nibble
