// SPDX-License-Identifier: Apache-2.0
#include "text/charsmap.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace nibble {
namespace {

// A unit is a node: 8 bits of the byte that leads to it, a bit that says whether a sequence ends
// here, and where its children lie, relative to it. The child for byte 0 has the value instead.
constexpr uint32_t kValueBit = 1u << 31;
bool HasValue(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t Label(uint32_t unit) {
  return unit & (kValueBit | 0xFF);
}
uint32_t Offset(uint32_t unit) {
  return unit >> 10 << ((unit & 1u << 9) >> 6);
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes, std::string where) : where_(std::move(where)) {
  uint32_t size = 0;
  if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
  if (size == 0 || size % sizeof(uint32_t) != 0 || size > bytes.size() - sizeof size) {
    FailDamaged();
  }
  units_.resize(size / sizeof(uint32_t));
  std::memcpy(units_.data(), bytes.data() + sizeof size, size);
  texts_ = bytes.substr(sizeof size + size);
  if (!texts_.ends_with('\0') || !IsValidUtf8(texts_)) FailDamaged();
  const auto child = [&](size_t node, uint32_t byte) {
    return (node ^ byte) < units_.size() && Label(units_[node ^ byte]) == byte;
  };
  const size_t root = Offset(units_[0]);
  for (uint32_t c = 1; c < 0x80; ++c) {
    plain_[c] = true;
    if (!child(root, c)) continue;
    const uint32_t unit = units_[root ^ c];
    plain_[c] = !HasValue(unit);
    for (uint32_t next = 1; next < 0x80; ++next) {
      plain_[c] = plain_[c] && !child(root ^ c ^ Offset(unit), next);
    }
  }
}

void Charsmap::FailDamaged() const {
  Fail("{}: the charsmap is damaged; get the file again", where_);
}

std::string_view Charsmap::Replacement(size_t begin) const {
  if (begin >= texts_.size() || IsUtf8Continuation(texts_[begin])) FailDamaged();
  return texts_.c_str() + begin;  // up to its zero
}

std::optional<Charsmap::Match> Charsmap::Find(std::string_view text, bool first) const {
  std::optional<Match> found;
  size_t node = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || Label(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= Offset(unit);
    // A sequence that ends inside a character would leave half of it behind.
    if (!HasValue(unit) || (i + 1 < text.size() && IsUtf8Continuation(text[i + 1]))) continue;
    if (node >= units_.size()) FailDamaged();
    found = {.size = i + 1, .replacement = Replacement(units_[node] & ~kValueBit)};
    if (first) break;
  }
  return found;
}

}  // namespace nibble
