// SPDX-License-Identifier: Apache-2.0
#include <simdjson.h>

#include <bit>
#include <set>

#include "base/checked.h"
#include "base/json.h"
#include "io/safetensors.h"

namespace nibble {
namespace {

std::string Quoted(const std::string& text, const std::string& where) {
  if (!simdjson::validate_utf8(text)) Fail("{}: a name or metadata is not valid UTF-8", where);
  return Json(text).dump();
}

std::string HeaderText(const std::string& path, std::span<const SafetensorsWriter::Entry> entries,
                       const std::map<std::string, std::string>& metadata,
                       std::span<const uint64_t> sizes) {
  std::vector<std::string> fields, pairs;
  for (const auto& [key, value] : metadata) {
    pairs.push_back(Quoted(key, path) + ":" + Quoted(value, path));
  }
  if (!pairs.empty()) {
    fields.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ",")));
  }
  std::set<std::string_view> seen = {"__metadata__"};
  uint64_t begin = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& [name, dtype, shape] = entries[i];
    if (!seen.insert(name).second) Fail("{}: two tensors named \"{}\"", path, name);
    fields.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                 Quoted(name, path), DTypeName(dtype), fmt::join(shape, ","), begin,
                                 begin + sizes[i]));
    begin += sizes[i];
  }
  return fmt::format("{{{}}}", fmt::join(fields, ","));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::span<const Entry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  for (const Entry& entry : entries) {
    const auto bytes = CheckedBytes(entry.shape, DTypeBytes(entry.dtype));
    NIBBLE_CHECK(bytes, "{}: shape {}", entry.name, ShapeText(entry.shape));
    sizes_.push_back(*bytes);
  }
  constexpr size_t kAlign = 64;
  std::string header = HeaderText(path, entries, metadata, sizes_);
  uint64_t length = (header.size() + sizeof(uint64_t) + kAlign - 1) / kAlign * kAlign;
  length -= sizeof length;
  if (length > kMaxSafetensorsHeaderBytes)
    Fail("{}: a header of {} bytes is above the limit", path, length);
  header.resize(length, ' ');
  static_assert(std::endian::native == std::endian::little);
  file_.Write(std::as_bytes(std::span(&length, 1)));
  file_.Write(header);
}

void SafetensorsWriter::Append(std::span<const std::byte> tensor) {
  NIBBLE_CHECK(next_ < sizes_.size() && tensor.size() == sizes_[next_],
               "{}: tensor {} of {} has {} bytes", file_.path(), next_, sizes_.size(),
               tensor.size());
  file_.Write(tensor);
  ++next_;
}

void SafetensorsWriter::Finish() {
  NIBBLE_CHECK(next_ == sizes_.size(), "{}: {} of {} tensors written", file_.path(), next_,
               sizes_.size());
  file_.Commit();
}

}  // namespace nibble
