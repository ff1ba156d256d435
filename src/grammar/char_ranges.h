// SPDX-License-Identifier: Apache-2.0
// Sets of characters as ranges of code points, and the byte sequences of their UTF-8.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

namespace nibble::grammar {

using ByteSet = std::bitset<256>;

struct CharRange {
  uint32_t first, last;  // both are in it
  bool operator==(const CharRange&) const = default;
};
using CharRanges = std::vector<CharRange>;

// Returns the ranges sorted and joined, without surrogates and what lies beyond U+10FFFF.
CharRanges NormalRanges(CharRanges ranges);
// Every character that is not in `ranges` (in any order).
CharRanges Complement(CharRanges ranges);
CharRanges Difference(const CharRanges& from, const CharRanges& taken);
CharRanges AllCharacters();

struct ByteRange {
  uint8_t first, last;
  auto operator<=>(const ByteRange&) const = default;
};
// The UTF-8 of a set of characters: those first bytes that may stand before these further ones.
// No character has two readings, and no other bytes are in it.
using Utf8Sequences = std::map<std::vector<ByteRange>, ByteSet>;
Utf8Sequences EncodeRanges(const CharRanges& normal);

}  // namespace nibble::grammar
