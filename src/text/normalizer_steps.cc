// SPDX-License-Identifier: Apache-2.0
#include "text/normalizer_steps.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/utf8.h"
#include "text/unicode_classes.h"

namespace nibble {
namespace {

constexpr std::string_view kSpaceSymbol = "\u2581";

// One below the trailing jamo. utf8proc 2.8 takes it for one of them and drops it behind a
// syllable, so it begins a part of its own, which it may: it joins with nothing before it.
constexpr const char* kNoTrailingJamo = "\u11A7";

bool IsAscii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

// utf8proc decomposes into 4 bytes a character, at most 18 for one, and sorts a run of combining
// marks by insertion.
void ChargeNormalization(std::string_view text, Work* work) {
  work->ChargeWrite(3 * text.size());
  uint64_t run = 0;
  ForEachCharacter(text, [&](uint32_t c, size_t, size_t) {
    const auto code_point = static_cast<utf8proc_int32_t>(c);
    run = c >= 0x80 && utf8proc_get_property(code_point)->combining_class != 0 ? run + 1 : 0;
    work->Charge(run);
  });
}

void NormalizePart(std::string_view part, int form, Work* work, std::string* out) {
  ChargeNormalization(part, work);
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()),
                   static_cast<utf8proc_ssize_t>(part.size()), &result,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | form));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(result, std::free);
  if (size < 0) FailUsage("the text cannot be normalized: {}", utf8proc_errmsg(size));
  out->append(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
}

// write(code_point, &result) for each character.
template <typename Write>
std::string Rewrite(std::string_view text, const Write& write) {
  std::string result;
  result.reserve(text.size());
  ForEachCharacter(text, [&](uint32_t c, size_t, size_t) { write(c, &result); });
  return result;
}

template <typename Keep>
std::string Filter(std::string_view text, const Keep& keep) {
  return Rewrite(text, [&](uint32_t c, std::string* result) {
    if (keep(c)) AppendUtf8(c, result);
  });
}

// Ideographs, which BERT's vocabularies have one by one. The ranges are those of the library, with
// its slip (0x2B920 for 0x2B820).
bool IsChinese(uint32_t c) {
  constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::ranges::any_of(kRanges, [c](auto r) { return c >= r.first && c <= r.second; });
}

// The end of the characters from `at` on that a map leaves alone, up to a space.
size_t PlainEnd(const Charsmap& map, std::string_view text, size_t at) {
  while (at < text.size() && text[at] != ' ' && map.IsPlain(text[at]) &&
         (at + 1 == text.size() || IsAscii(text[at + 1]))) {
    ++at;
  }
  return at;
}

size_t GraphemeEnd(std::string_view text, size_t at) {
  utf8proc_int32_t state = 0;
  size_t end = at + Utf8Length(text[at]);
  auto last = static_cast<utf8proc_int32_t>(CodePoint(text.substr(at, end - at)));
  while (end < text.size()) {
    const size_t size = Utf8Length(text[end]);
    const auto next = static_cast<utf8proc_int32_t>(CodePoint(text.substr(end, size)));
    if (utf8proc_grapheme_break_stateful(last, next, &state)) break;
    end += size;
    last = next;
  }
  return end;
}

}  // namespace

std::string UnicodeNormalize(std::string text, int form, Work* work) {
  // ASCII is the same in every form, and joins with what follows it at most.
  std::string result;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (IsAscii(text[at])) {
      ++at;
      continue;
    }
    const size_t begin = at > done ? at - 1 : at;
    do ++at;
    while (at < text.size() && !IsAscii(text[at]) && text.compare(at, 3, kNoTrailingJamo) != 0);
    result.append(text, done, begin - done);
    NormalizePart(std::string_view(text).substr(begin, at - begin), form, work, &result);
    done = at;
  }
  if (done == 0) return text;
  return result.append(text, done);
}

std::string Lowercase(std::string_view text, Work* work) {
  work->ChargeWrite(text.size());
  return Rewrite(text, [](uint32_t c, std::string* result) {
    if (c == 0x130) return void(result->append("i\u0307"));  // the only one that becomes two
    AppendUtf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), result);
  });
}

std::string StripSpace(std::string_view text, bool left, bool right) {
  size_t begin = text.size(), end = 0;
  ForEachCharacter(text, [&](uint32_t c, size_t from, size_t to) {
    if (IsSpace(c)) return;
    begin = std::min(begin, from);
    end = to;
  });
  if (begin > end) begin = end = left ? text.size() : 0;  // all white space
  if (!left) begin = 0;
  if (!right) end = text.size();
  return std::string(text.substr(begin, end - begin));
}

std::string StripMarks(std::string_view text) {
  return Filter(text, [](uint32_t c) { return !IsMark(c); });
}

std::string CleanForTranslation(std::string_view text) {
  return Rewrite(text, [](uint32_t c, std::string* result) {
    const bool dropped = (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) ||
                         c == 0x7F || c == 0x8F || c == 0x9F;
    const bool space = (c >= 0x09 && c <= 0x0D) || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                       c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
    if (!dropped) AppendUtf8(space ? ' ' : c, result);
  });
}

std::string NormalizeForBert(std::string text, const BertSteps& steps, Work* work) {
  if (steps.clean_text) {
    text = Rewrite(text, [](uint32_t c, std::string* result) {
      const bool space = IsSpace(c) && c != 0x0B && c != 0x0C && c != 0x85;
      if (c != 0xFFFD && (space || !IsOther(c))) AppendUtf8(space ? ' ' : c, result);
    });
  }
  if (steps.chinese_chars) {
    text = Rewrite(text, [](uint32_t c, std::string* result) {
      if (IsChinese(c)) result->push_back(' ');
      AppendUtf8(c, result);
      if (IsChinese(c)) result->push_back(' ');
    });
  }
  work->ChargeWrite(text.size());
  if (steps.strip_accents) {
    text = Filter(UnicodeNormalize(std::move(text), UTF8PROC_DECOMPOSE, work),
                  [](uint32_t c) { return !IsNonspacingMark(c); });
  }
  return steps.lowercase ? Lowercase(text, work) : text;
}

std::string ReplaceGraphemes(const Charsmap& map, std::string_view text, Work* work) {
  constexpr size_t kMaxGraphemeBytes = 5;
  std::string result;
  const auto write = [&](std::string_view bytes) {
    work->ChargeWrite(bytes.size() + 1);
    result.append(bytes);
  };
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = PlainEnd(map, text, at);
    if (end > at) {
      write(text.substr(at, end - at));
      continue;
    }
    end = GraphemeEnd(text, at);
    const std::string_view grapheme = text.substr(at, end - at);
    if (grapheme.size() <= kMaxGraphemeBytes) {
      if (const auto match = map.Shortest(grapheme)) {
        write(match->replacement);
        continue;
      }
    }
    ForEachCharacter(grapheme, [&](uint32_t, size_t from, size_t to) {
      const std::string_view character = grapheme.substr(from, to - from);
      const auto match = map.Shortest(character);
      write(match ? match->replacement : character);
    });
  }
  return result;
}

std::string NormalizeForSentencePiece(const SentencePieceSteps& steps, std::string_view text,
                                      Work* work) {
  const std::string_view space = steps.escape_whitespaces ? kSpaceSymbol : " ";
  std::string result;
  bool begun = false;
  bool after_space = steps.remove_extra_whitespaces;  // so that those in front go, too
  const auto begin = [&] {
    if (!begun && steps.add_dummy_prefix) result.append(space);
    begun = true;
  };
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    Charsmap::Match match = {};
    if (steps.user_defined.empty() && steps.map) {
      match.size = PlainEnd(*steps.map, text, at) - at;
      match.replacement = rest.substr(0, match.size);
    }
    steps.user_defined.ForEachPrefix(rest, work, [&](size_t size, int32_t) {
      match = {.size = size, .replacement = rest.substr(0, size)};
    });
    if (match.size == 0 && steps.map) match = steps.map->Longest(rest).value_or(match);
    if (match.size == 0) {
      match.size = Utf8Length(rest[0]);
      match.replacement = rest.substr(0, match.size);
    }
    at += match.size;
    std::string_view piece = match.replacement;
    if (!begun && steps.remove_extra_whitespaces && piece == " ") continue;
    begin();
    while (after_space && piece.starts_with(' ')) piece.remove_prefix(1);
    for (const char c : piece) c == ' ' ? void(result.append(space)) : result.push_back(c);
    work->ChargeWrite(match.size + 3 * piece.size());
    if (!piece.empty()) after_space = steps.remove_extra_whitespaces && piece.ends_with(' ');
  }
  while (steps.remove_extra_whitespaces && result.ends_with(space)) {
    result.resize(result.size() - space.size());
  }
  return result;
}

}  // namespace nibble
