// SPDX-License-Identifier: Apache-2.0
#include "grammar/char_ranges.h"

#include <algorithm>
#include <string>

#include "base/utf8.h"

namespace nibble::grammar {
namespace {

constexpr uint32_t kLastChar = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

void AddSequence(uint32_t first, uint32_t last, Utf8Sequences* sequences) {
  std::string from, to;
  AppendUtf8(first, &from);
  AppendUtf8(last, &to);
  std::vector<ByteRange> tail;
  for (size_t i = 1; i < from.size(); ++i) {
    tail.push_back({static_cast<uint8_t>(from[i]), static_cast<uint8_t>(to[i])});
  }
  ByteSet& firsts = (*sequences)[tail];
  for (int b = static_cast<uint8_t>(from[0]); b <= static_cast<uint8_t>(to[0]); ++b) firsts.set(b);
}

// first..last have UTF-8 of one length. Cuts where a continuation byte does not run over its whole
// range while a byte before it changes.
void EncodeRange(uint32_t first, uint32_t last, Utf8Sequences* sequences) {
  const int tail_bytes = first < 0x80 ? 0 : first < 0x800 ? 1 : first < 0x10000 ? 2 : 3;
  for (int i = 1; i <= tail_bytes; ++i) {
    const uint32_t low = (1u << (6 * i)) - 1;
    if ((first & ~low) == (last & ~low)) continue;
    if ((first & low) != 0) {
      EncodeRange(first, first | low, sequences);
      return EncodeRange((first | low) + 1, last, sequences);
    }
    if ((last & low) != low) {
      EncodeRange(first, (last & ~low) - 1, sequences);
      return EncodeRange(last & ~low, last, sequences);
    }
  }
  AddSequence(first, last, sequences);
}

}  // namespace

CharRanges NormalRanges(CharRanges ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CharRange& a, const CharRange& b) { return a.first < b.first; });
  CharRanges joined;
  for (CharRange range : ranges) {
    range.last = std::min(range.last, kLastChar);
    if (range.first > range.last) continue;
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  CharRanges normal;
  for (const CharRange& range : joined) {
    if (range.first < kFirstSurrogate) {
      normal.push_back({range.first, std::min(range.last, kFirstSurrogate - 1)});
    }
    if (range.last > kLastSurrogate) {
      normal.push_back({std::max(range.first, kLastSurrogate + 1), range.last});
    }
  }
  return normal;
}

CharRanges Complement(CharRanges ranges) {
  CharRanges others;
  uint32_t next = 0;
  for (const CharRange& range : NormalRanges(std::move(ranges))) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastChar) others.push_back({next, kLastChar});
  return NormalRanges(std::move(others));
}

CharRanges Difference(const CharRanges& from, const CharRanges& taken) {
  CharRanges outside = Complement(from);
  outside.insert(outside.end(), taken.begin(), taken.end());
  return Complement(std::move(outside));
}

CharRanges AllCharacters() {
  return Complement({});
}

Utf8Sequences EncodeRanges(const CharRanges& normal) {
  Utf8Sequences sequences;
  for (const CharRange& range : normal) {
    uint32_t first = range.first;
    for (const uint32_t end : {0x7Fu, 0x7FFu, 0xFFFFu, kLastChar}) {  // of a length
      if (first > range.last) break;
      if (first > end) continue;
      const uint32_t last = std::min(range.last, end);
      EncodeRange(first, last, &sequences);
      first = last + 1;
    }
  }
  return sequences;
}

}  // namespace nibble::grammar
