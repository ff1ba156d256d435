// SPDX-License-Identifier: Apache-2.0
// Reads the fields of a protobuf message one by one (protobuf.dev/programming-guides/encoding):
// enough for a format of which a few fields matter. Every length is checked against what is left;
// groups, which no format here has, are refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

class ProtobufReader {
 public:
  // `where` names the message in errors.
  ProtobufReader(std::string_view message, std::string where);

  // False at the end. Otherwise the getter of the field's type can be called once; a field that is
  // left alone is skipped.
  bool Next();
  uint32_t number() const { return number_; }
  uint64_t Varint();
  bool Bool() { return Varint() != 0; }
  float Float();
  std::string_view Bytes();  // as long as the message lives
  std::string_view Text();   // the same bytes, which must be valid UTF-8

 private:
  enum Type : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  uint64_t ReadVarint();
  std::string_view Take(uint64_t size);
  void Expect(Type type) const;
  [[noreturn]] void FailDamaged() const;

  std::string_view rest_;
  std::string where_;
  uint32_t number_ = 0;
  Type type_ = kVarint;
  uint64_t varint_ = 0;
  std::string_view bytes_;  // the value of a field that is no varint
};

}  // namespace nibble
