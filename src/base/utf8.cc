// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <simdjson.h>
#include <string.h>
#include <utf8proc.h>

namespace nibble {
namespace {

struct Sequence {
  enum class State { kValid, kInvalid, kTruncated } state;
  size_t length;
};

// The sequence at the start of `text` (not empty); table 3-7 of the Unicode standard.
Sequence FirstSequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Sequence::State::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Sequence::State::kInvalid, 1};
  const size_t length = Utf8Length(text[0]);
  unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Sequence::State::kTruncated, i};
    if (byte(i) < low || byte(i) > high) return {Sequence::State::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Sequence::State::kValid, length};
}

}  // namespace

void AppendUtf8(uint32_t code_point, std::string* text) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  text->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

bool IsValidUtf8(std::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

size_t FindText(std::string_view text, std::string_view needle, size_t from) {
  // memmem is linear; std::string::find is quadratic on periodic text.
  const char* begin = text.data() + from;
  const void* hit = memmem(begin, text.size() - from, needle.data(), needle.size());
  return hit == nullptr ? std::string::npos
                        : static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

std::string TakeUtf8(std::string* bytes) {
  std::string text;
  size_t at = 0;
  while (at < bytes->size()) {
    const std::string_view rest = std::string_view(*bytes).substr(at);
    const Sequence sequence = FirstSequence(rest);
    if (sequence.state == Sequence::State::kTruncated) break;
    text.append(sequence.state == Sequence::State::kValid ? rest.substr(0, sequence.length)
                                                          : kReplacementCharacter);
    at += sequence.length;
  }
  bytes->erase(0, at);
  return text;
}

}  // namespace nibble
