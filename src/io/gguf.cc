// SPDX-License-Identifier: Apache-2.0
#include "io/gguf.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "io/safetensors.h"
#include "tensor/blocks.h"

namespace nibble {
namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kMaxKeys = 1 << 16, kMaxNameBytes = 1 << 10, kMaxAlignment = 1 << 20;
constexpr uint32_t kMaxDimensions = 4;

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kValueTypes
};

constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // 0: varies

constexpr std::pair<uint32_t, DType> kTensorTypes[] = {
    {0, DType::kF32},  {1, DType::kF16},  {2, DType::kQ4_0},  {3, DType::kQ4_1},
    {6, DType::kQ5_0}, {7, DType::kQ5_1}, {8, DType::kQ8_0},  {12, DType::kQ4K},
    {13, DType::kQ5K}, {14, DType::kQ6K}, {30, DType::kBf16}, {39, DType::kMxfp4},
};

DType TensorType(uint32_t type, const std::string& what) {
  std::vector<std::string> known;
  for (const auto& [id, dtype] : kTensorTypes) {
    if (id == type) return dtype;
    known.push_back(DTypeName(dtype));
  }
  Fail("{}: tensor type {} is not read; use a file of {}", what, type, fmt::join(known, ", "));
}

template <typename T>
T LoadAt(std::span<const std::byte> bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

// Goes through the file; what it returns lies inside.
class GgufFile::Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }
  std::span<const std::byte> Take(uint64_t count, std::string_view what) {
    if (count > left()) {
      Fail("{}: {} at byte {} needs {} bytes, {} are left (truncated?)", path_, what, at_, count,
           left());
    }
    const auto bytes = file_.subspan(at_, count);
    at_ += count;
    return bytes;
  }
  template <typename T>
  T Read(std::string_view what) {
    return LoadAt<T>(Take(sizeof(T), what), 0);
  }
  std::string_view String(std::string_view what) {
    const auto bytes = Take(Read<uint64_t>(what), what);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!simdjson::validate_utf8(text)) Fail("{}: {} is not valid UTF-8", path_, what);
    return text;
  }
  // The name of a key or tensor. Messages print it, so spaces and control characters are refused.
  std::string Name(std::string_view what) {
    const std::string_view name = String(what);
    const bool plain = std::ranges::all_of(name, [](char c) { return c > ' ' && c != 0x7F; });
    if (name.empty() || name.size() > kMaxNameBytes || !plain) {
      Fail("{}: {} at byte {} is not a plain name", path_, what, at_);
    }
    return std::string(name);
  }

 private:
  std::span<const std::byte> file_;
  const std::string& path_;
  uint64_t at_ = 0;
};

GgufFile::GgufFile(const std::string& path) : file_(std::make_shared<const MappedFile>(path)) {
  Reader reader(file_->bytes(), path);
  if (reader.left() < 4 || std::memcmp(reader.Take(4, "magic").data(), "GGUF", 4) != 0) {
    Fail("{}: not a GGUF file", path);
  }
  const auto version = reader.Read<uint32_t>("version");
  if (version != kVersion) Fail("{}: GGUF version {}; version 3 is read", path, version);
  const auto tensors = reader.Read<uint64_t>("number of tensors");
  const auto keys = reader.Read<uint64_t>("number of keys");
  if (tensors > kMaxTensors) Fail("{}: over {} tensors", path, kMaxTensors);
  if (keys > kMaxKeys) Fail("{}: over {} keys", path, kMaxKeys);
  for (uint64_t i = 0; i < keys; ++i) {
    std::string name = reader.Name("name of a key");
    const Value value = ReadValue(reader, name);
    const auto [it, inserted] = keys_.emplace(std::move(name), value);
    if (!inserted) Fail("{}: key {} stands twice", path, it->first);
  }
  ReadTensors(reader, tensors);
}

GgufFile::Value GgufFile::ReadValue(Reader& reader, const std::string& what) const {
  Value value{.type = reader.Read<uint32_t>(what)};
  if (value.type == kArray) {
    value.array = true;
    value.type = reader.Read<uint32_t>(what);
    value.count = reader.Read<uint64_t>(what);
  }
  if (value.type >= kValueTypes || value.type == kArray) {
    Fail("{}: {}: value type {} is not read", path(), what, value.type);
  }
  if (const size_t size = kSizes[value.type]; size > 0) {
    if (value.count > reader.left() / size) {
      Fail("{}: {}: {} values do not fit into the file", path(), what, value.count);
    }
    value.bytes = reader.Take(value.count * size, what);
    return value;
  }
  const uint64_t begin = reader.at();
  for (uint64_t i = 0; i < value.count; ++i) reader.String(what);
  value.bytes = file_->bytes().subspan(begin, reader.at() - begin);
  return value;
}

void GgufFile::ReadTensors(Reader& reader, uint64_t count) {
  struct Place {
    uint64_t offset, bytes;
    Tensor* tensor;
    std::string_view name;
  };
  std::vector<Place> places;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string name = reader.Name("name of a tensor");
    const std::string what = fmt::format("{}: tensor {}", path(), name);
    Tensor tensor;
    const auto dimensions = reader.Read<uint32_t>(what);
    if (dimensions < 1 || dimensions > kMaxDimensions) Fail("{}: {} dimensions", what, dimensions);
    for (uint32_t d = 0; d < dimensions; ++d) {
      const auto extent = reader.Read<uint64_t>(what);
      if (extent < 1 || extent > INT64_MAX) Fail("{}: an extent of {}", what, extent);
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
    }
    tensor.dtype = TensorType(reader.Read<uint32_t>(what), what);
    const BlockType* blocks = BlockTypeOf(tensor.dtype);
    std::vector<int64_t> extents = tensor.shape;
    if (blocks != nullptr) {
      if (extents.back() % blocks->elements != 0) {
        Fail("{}: rows of {} are not whole blocks of {}", what, extents.back(), blocks->name);
      }
      extents.back() /= blocks->elements;
    }
    const auto bytes =
        CheckedBytes(extents, blocks != nullptr ? blocks->bytes : DTypeBytes(tensor.dtype));
    if (!CheckedBytes(tensor.shape, 8) || !bytes) {
      Fail("{}: shape {} is too large", what, ShapeText(tensor.shape));
    }
    const auto offset = reader.Read<uint64_t>(what);
    const auto [it, inserted] = tensors_.emplace(name, std::move(tensor));
    if (!inserted) Fail("{}: stands twice", what);
    places.push_back({offset, *bytes, &it->second, it->first});
  }
  const uint64_t alignment = static_cast<uint64_t>(FindInteger("general.alignment").value_or(32));
  if (alignment == 0 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
    Fail("{}: general.alignment {} is not a power of two", path(), alignment);
  }
  const auto align = [&](uint64_t at) { return (at + alignment - 1) / alignment * alignment; };
  const uint64_t start = std::min<uint64_t>(align(reader.at()), file_->bytes().size());
  const auto data = file_->bytes().subspan(start);
  std::ranges::sort(places, {}, &Place::offset);
  uint64_t expected = 0;
  for (const Place& place : places) {
    if (place.offset != expected || place.bytes > data.size() - std::min(expected, data.size())) {
      Fail("{}: tensor {}: {} bytes at offset {}, expected at {} of {} (truncated?)", path(),
           place.name, place.bytes, place.offset, expected, data.size());
    }
    place.tensor->data = data.data() + place.offset;
    place.tensor->owner = file_;
    expected = align(place.offset + place.bytes);
  }
}

const GgufFile::Value* GgufFile::Find(std::string_view key, bool array) const {
  const auto it = keys_.find(key);
  if (it == keys_.end()) return nullptr;
  if (it->second.array != array) Refuse(key, array ? "an array" : "one value");
  return &it->second;
}

void GgufFile::Refuse(std::string_view key, std::string_view expected) const {
  Fail("{}: {} must be {}", path(), key, expected);
}

std::optional<int64_t> GgufFile::IntegerAt(const Value& value, uint64_t index) const {
  switch (value.type) {
    case kU8:
      return LoadAt<uint8_t>(value.bytes, index);
    case kI8:
      return LoadAt<int8_t>(value.bytes, index);
    case kU16:
      return LoadAt<uint16_t>(value.bytes, index);
    case kI16:
      return LoadAt<int16_t>(value.bytes, index);
    case kU32:
      return LoadAt<uint32_t>(value.bytes, index);
    case kI32:
      return LoadAt<int32_t>(value.bytes, index);
    case kI64:
      return LoadAt<int64_t>(value.bytes, index);
    case kU64: {
      const auto number = LoadAt<uint64_t>(value.bytes, index);
      if (number <= INT64_MAX) return static_cast<int64_t>(number);
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufFile::RealAt(const Value& value, uint64_t index) const {
  if (const auto integer = IntegerAt(value, index)) return static_cast<double>(*integer);
  double number = NAN;
  if (value.type == kF32) number = LoadAt<float>(value.bytes, index);
  if (value.type == kF64) number = LoadAt<double>(value.bytes, index);
  if (!std::isfinite(number)) return std::nullopt;
  return number;
}

std::optional<bool> GgufFile::BoolAt(const Value& value, uint64_t index) const {
  if (value.type != kBool || LoadAt<uint8_t>(value.bytes, index) > 1) return std::nullopt;
  return LoadAt<uint8_t>(value.bytes, index) == 1;
}

template <typename T>
std::optional<T> GgufFile::One(std::string_view key, At<T> at, std::string_view expected) const {
  const Value* value = Find(key, false);
  if (value == nullptr) return std::nullopt;
  const std::optional<T> item = (this->*at)(*value, 0);
  if (!item) Refuse(key, expected);
  return item;
}

template <typename T>
std::vector<T> GgufFile::Many(std::string_view key, uint64_t count, At<T> at,
                              std::string_view expected) const {
  const Value* value = Find(key, true);
  if (value == nullptr) return {};
  if (value->count != count) {
    Fail("{}: {} has {} items, expected {}", path(), key, value->count, count);
  }
  std::vector<T> items;
  for (uint64_t i = 0; i < count; ++i) {
    const std::optional<T> item = (this->*at)(*value, i);
    if (!item) Refuse(key, expected);
    items.push_back(*item);
  }
  return items;
}

std::optional<bool> GgufFile::FindBool(std::string_view key) const {
  return One(key, &GgufFile::BoolAt, "true or false");
}

std::optional<int64_t> GgufFile::FindInteger(std::string_view key) const {
  return One(key, &GgufFile::IntegerAt, "an integer");
}

std::optional<double> GgufFile::FindReal(std::string_view key) const {
  return One(key, &GgufFile::RealAt, "a number");
}

std::vector<int64_t> GgufFile::Integers(std::string_view key, uint64_t count) const {
  return Many(key, count, &GgufFile::IntegerAt, "integers");
}

uint64_t GgufFile::Count(std::string_view key) const {
  const Value* value = Find(key, true);
  return value == nullptr ? 0 : value->count;
}

std::vector<double> GgufFile::Reals(std::string_view key, uint64_t count) const {
  return Many(key, count, &GgufFile::RealAt, "numbers");
}

std::optional<std::string_view> GgufFile::FindString(std::string_view key) const {
  const Value* value = Find(key, false);
  if (value == nullptr) return std::nullopt;
  if (value->type != kString) Refuse(key, "a string");
  return Reader(value->bytes, path()).String(key);
}

int64_t GgufFile::Integer(std::string_view key) const {
  const auto number = FindInteger(key);
  if (!number) Fail("{}: {} is missing", path(), key);
  return *number;
}

std::vector<std::string_view> GgufFile::Strings(std::string_view key) const {
  const Value* value = Find(key, true);
  if (value == nullptr) return {};
  if (value->type != kString) Refuse(key, "strings");
  Reader reader(value->bytes, path());
  std::vector<std::string_view> texts;
  for (uint64_t i = 0; i < value->count; ++i) texts.push_back(reader.String(key));
  return texts;
}

std::vector<std::string> GgufFile::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : keys_) keys.push_back(key);
  return keys;
}

// Not of strings, whose places are not known.
Json GgufFile::JsonAt(const Value& value, uint64_t index) const {
  if (const auto flag = BoolAt(value, index)) return *flag;
  if (const auto integer = IntegerAt(value, index)) return *integer;
  const auto real = RealAt(value, index);
  return real ? Json(*real) : Json("?");
}

Json GgufFile::Show(std::string_view key) const {
  constexpr uint64_t kMax = 1 << 10;
  const Value& value = keys_.at(std::string(key));
  if (value.count > kMax) return fmt::format("{} items", value.count);
  if (value.type == kString && !value.array) return std::string(*FindString(key));
  if (!value.array) return JsonAt(value, 0);
  Json list = Json::array();
  if (value.type == kString) {
    for (const std::string_view text : Strings(key)) list.push_back(std::string(text));
  } else {
    for (uint64_t i = 0; i < value.count; ++i) list.push_back(JsonAt(value, i));
  }
  return list;
}

}  // namespace nibble
