// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/checked.h"

namespace nibble {
namespace {

// simdjson and not base/json.h: a large model's index has 100,000 keys, and the ordered objects
// there look keys up linearly.
namespace dom = simdjson::dom;

constexpr size_t kMaxRank = 8;
constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxTensorNameBytes = 4096;
constexpr size_t kMaxTokens = 16 * kMaxTensors;  // a tensor has 14 in a header, 2 in an index
constexpr std::string_view kMetadata = "__metadata__";

// `padded`: bytes that can be read lie behind the text, so that the parser need not copy it.
dom::object ParseObject(dom::parser& parser, std::string_view text, bool padded,
                        const std::string& where) {
  // Each token takes the parser 12 bytes and each tensor some 300: count before it begins.
  const auto tokens = std::count_if(text.begin(), text.end(), [](char c) {
    return (c == ',') | (c == ':') | (c == '[') | (c == '{');
  });
  if (static_cast<size_t>(tokens) > kMaxTokens) {
    Fail("{}: {} JSON tokens; models have at most {} tensors", where, tokens, kMaxTensors);
  }
  dom::object root;
  auto error = parser.allocate(text.size(), kMaxDepth);
  if (!error) error = parser.parse(text.data(), text.size(), !padded).get(root);
  if (error) Fail("{}: not a valid JSON object ({})", where, simdjson::error_message(error));
  return root;
}

// Names end up in error messages, other files and terminals.
std::string CheckedName(std::string_view name, const std::string& where) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (name.size() > kMaxTensorNameBytes || std::any_of(name.begin(), name.end(), control)) {
    Fail("{}: a name is above {} bytes or has control characters", where, kMaxTensorNameBytes);
  }
  // simdjson checks the text; escapes of lone surrogates may still yield bytes that are not UTF-8.
  if (!simdjson::validate_utf8(name)) Fail("{}: a name is not valid Unicode", where);
  return std::string(name);
}

std::map<std::string, std::string> ParseStringMap(const dom::element& value,
                                                  const std::string& where) {
  dom::object object;
  if (value.get(object)) Fail("{} must be an object", where);
  std::map<std::string, std::string> result;
  for (const auto& [key, field] : object) {
    const std::string name = CheckedName(key, where);
    std::string_view text;
    if (field.get(text) || !simdjson::validate_utf8(text)) {
      Fail("{}: \"{}\" must be a string", where, name);
    }
    if (!result.emplace(name, text).second) Fail("{}: duplicate key \"{}\"", where, name);
    if (result.size() > kMaxTensors) Fail("{}: over {} entries", where, kMaxTensors);
  }
  return result;
}

DType ParseDType(const dom::element& value, const std::string& at) {
  std::string_view text;
  if (value.get(text)) Fail("{}: dtype must be a string", at);
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    if (DTypeName(static_cast<DType>(i)) == text) return static_cast<DType>(i);
  }
  Fail("{}: dtype \"{}\" is not supported", at, CheckedName(text, at));
}

std::vector<int64_t> ParseIntegers(const dom::element& value, size_t max_count,
                                   const std::string& what) {
  dom::array array;
  if (value.get(array)) Fail("{} must be an array", what);
  std::vector<int64_t> result;
  for (const dom::element& item : array) {
    int64_t number;
    if (item.get(number) || number < 0) Fail("{} must hold integers from 0 to 2^63 - 1", what);
    if (result.size() == max_count) Fail("{} has more than {} elements", what, max_count);
    result.push_back(number);
  }
  return result;
}

struct Region {
  uint64_t begin, end;  // offsets in the data
  Tensor view;          // without data
};

// Bytes of a tensor, refused also if it is empty only by one extent and its other extents overflow:
// callers multiply them in any order.
uint64_t TensorBytes(std::span<const int64_t> shape, DType dtype, const std::string& at) {
  std::vector<int64_t> extents(shape.begin(), shape.end());
  std::replace(extents.begin(), extents.end(), int64_t{0}, int64_t{1});
  const auto bytes = CheckedBytes(extents, DTypeBytes(dtype));
  if (!bytes || *bytes > INT64_MAX) Fail("{}: shape {} is too large", at, ShapeText(shape));
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? *bytes : 0;
}

Region ParseTensor(const dom::element& value, uint64_t data_bytes, const std::string& at) {
  dom::object object;
  if (value.get(object)) Fail("{} must be an object", at);
  std::optional<DType> dtype;
  std::optional<std::vector<int64_t>> shape, offsets;
  for (const auto& [key, field] : object) {
    if (key == "dtype" && !dtype) {
      dtype = ParseDType(field, at);
    } else if (key == "shape" && !shape) {
      shape = ParseIntegers(field, kMaxRank, at + ": shape");
    } else if (key == "data_offsets" && !offsets) {
      offsets = ParseIntegers(field, 2, at + ": data_offsets");
    } else {
      Fail("{}: duplicate or unknown field \"{}\"", at, CheckedName(key, at));
    }
  }
  if (!dtype || !shape || !offsets || offsets->size() != 2) {
    Fail("{}: dtype, shape and data_offsets [begin, end] are needed", at);
  }
  const auto begin = static_cast<uint64_t>(offsets->at(0));
  const auto end = static_cast<uint64_t>(offsets->at(1));
  if (begin > end || end > data_bytes) {
    Fail("{}: data_offsets [{}, {}] do not lie in the {} bytes of data (truncated file?)", at,
         begin, end, data_bytes);
  }
  const uint64_t bytes = TensorBytes(*shape, *dtype, at);
  if (bytes != end - begin) {
    Fail("{}: data_offsets [{}, {}] hold {} bytes, shape {} of {} needs {}", at, begin, end,
         end - begin, ShapeText(*shape), DTypeName(*dtype), bytes);
  }
  return {begin, end, {*dtype, std::move(*shape), nullptr}};
}

struct Extent {
  uint64_t begin, end;
  std::string_view name;
};

void CheckContiguous(std::vector<Extent> extents, uint64_t data_bytes, const std::string& where) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != end) {
      Fail(
          "{}: tensor \"{}\": data_offsets [{}, {}] leave a hole or overlap, the previous tensor "
          "ends at {}",
          where, extent.name, extent.begin, extent.end, end);
    }
    end = extent.end;
  }
  if (end != data_bytes) {
    Fail("{}: the last tensor ends at data offset {}, the file at {}", where, end, data_bytes);
  }
}

std::string_view HeaderText(std::span<const std::byte> file, const std::string& where) {
  uint64_t length = 0;
  if (file.size() < sizeof length) {
    Fail("{}: {} bytes are too few for a safetensors file (truncated?)", where, file.size());
  }
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&length, file.data(), sizeof length);
  const auto end = CheckedAdd(sizeof length, length);
  if (length > kMaxSafetensorsHeaderBytes || !end || *end > file.size()) {
    Fail(
        "{}: the header length at offset 0 is {}, the file has {} bytes and the limit is {} "
        "(truncated, or not a safetensors file)",
        where, length, file.size(), kMaxSafetensorsHeaderBytes);
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof length, length);
  if (!text.starts_with('{')) Fail("{}: the header at offset 8 does not begin with {{", where);
  return text;
}

}  // namespace

SafetensorsContents ParseSafetensors(std::span<const std::byte> file, const std::string& where) {
  const std::string_view header = HeaderText(file, where);
  const auto data = file.subspan(sizeof(uint64_t) + header.size());
  dom::parser parser;
  std::optional<std::map<std::string, std::string>> metadata;
  SafetensorsContents contents;
  std::vector<Extent> extents;
  const bool padded = data.size() >= simdjson::SIMDJSON_PADDING;
  for (const auto& [key, value] : ParseObject(parser, header, padded, where)) {
    if (key == kMetadata) {
      if (metadata) Fail("{}: duplicate key \"{}\"", where, kMetadata);
      metadata = ParseStringMap(value, fmt::format("{}: {}", where, kMetadata));
      continue;
    }
    const std::string name = CheckedName(key, where);
    Region region = ParseTensor(value, data.size(), fmt::format("{}: tensor \"{}\"", where, name));
    region.view.data = data.data() + region.begin;
    const auto [it, inserted] = contents.tensors.emplace(name, std::move(region.view));
    if (!inserted) Fail("{}: duplicate tensor \"{}\"", where, name);
    if (contents.tensors.size() > kMaxTensors) Fail("{}: over {} tensors", where, kMaxTensors);
    extents.push_back({region.begin, region.end, it->first});
  }
  CheckContiguous(std::move(extents), data.size(), where);
  if (metadata) contents.metadata = std::move(*metadata);
  return contents;
}

std::map<std::string, std::string> ParseSafetensorsIndex(std::string_view text,
                                                         const std::string& where) {
  dom::parser parser;
  std::optional<std::map<std::string, std::string>> weight_map;
  for (const auto& [key, value] : ParseObject(parser, text, false, where)) {
    if (key != "weight_map") continue;
    if (weight_map) Fail("{}: duplicate key \"weight_map\"", where);
    weight_map = ParseStringMap(value, where + ": weight_map");
  }
  if (!weight_map) Fail("{}: field \"weight_map\" is missing", where);
  for (const auto& [name, shard] : *weight_map) CheckedName(shard, where);
  return std::move(*weight_map);
}

}  // namespace nibble
