// SPDX-License-Identifier: Apache-2.0
#include "source/protobuf.h"

#include <simdjson.h>

#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"

namespace nibble {

ProtobufReader::ProtobufReader(std::string_view message, std::string where)
    : rest_(message), where_(std::move(where)) {}

void ProtobufReader::FailDamaged() const {
  Fail("{}: cut off or damaged {} bytes before its end; get the file again", where_, rest_.size());
}

uint64_t ProtobufReader::ReadVarint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (rest_.empty()) FailDamaged();
    const auto byte = static_cast<unsigned char>(rest_[0]);
    rest_.remove_prefix(1);
    if (shift == 63 && byte > 1) FailDamaged();  // more than 64 bits
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return value;
  }
  FailDamaged();
}

std::string_view ProtobufReader::Take(uint64_t size) {
  if (size > rest_.size()) FailDamaged();
  const std::string_view bytes = rest_.substr(0, static_cast<size_t>(size));
  rest_.remove_prefix(bytes.size());
  return bytes;
}

bool ProtobufReader::Next() {
  if (rest_.empty()) return false;
  const uint64_t key = ReadVarint();
  if (key >> 3 == 0 || key >> 3 > std::numeric_limits<uint32_t>::max()) FailDamaged();
  number_ = static_cast<uint32_t>(key >> 3);
  type_ = static_cast<Type>(key & 7);
  switch (type_) {
    case kVarint:
      varint_ = ReadVarint();
      return true;
    case kFixed64:
      bytes_ = Take(8);
      return true;
    case kBytes:
      bytes_ = Take(ReadVarint());
      return true;
    case kFixed32:
      bytes_ = Take(4);
      return true;
  }
  FailDamaged();
}

void ProtobufReader::Expect(Type type) const {
  if (type_ != type) Fail("{}: field {} has another type than expected", where_, number_);
}

uint64_t ProtobufReader::Varint() {
  Expect(kVarint);
  return varint_;
}

float ProtobufReader::Float() {
  Expect(kFixed32);
  float value;
  std::memcpy(&value, bytes_.data(), sizeof value);
  return value;
}

std::string_view ProtobufReader::Bytes() {
  Expect(kBytes);
  return bytes_;
}

std::string_view ProtobufReader::Text() {
  const std::string_view text = Bytes();
  if (!simdjson::validate_utf8(text)) Fail("{}: a text is not valid UTF-8", where_);
  return text;
}

}  // namespace nibble
