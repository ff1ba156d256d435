// SPDX-License-Identifier: Apache-2.0
// Regular expressions of tokenizer.json, matched by PCRE2 (JIT). The files are written for
// Oniguruma; what the two engines read differently is refused, so a pattern that loads gives the
// same pieces. Patterns that people type are PCRE2's. Copies share the compiled pattern; matching
// is thread-safe.
//
// PCRE2's own match limit holds for each place where a match may start, and does not count what one
// item runs over. So matching is counted here: a first attempt sees only a few bytes of text and
// gives up early, the second calls back before every item and charges a Work.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "text/work.h"

namespace nibble {

class Regex {
 public:
  enum class Syntax { kPattern, kLiteral, kPcre2 };

  // `where` names the pattern in messages. An invalid or refused pattern is an Error.
  Regex(std::string_view pattern, Syntax syntax, std::string where);

  // Calls match(begin, end) for the non-overlapping matches, left to right. `text` must be valid
  // UTF-8.
  template <typename Match>
  void ForEachMatch(std::string_view text, Work* work, const Match& match) const {
    std::string replaced;
    text = Prepare(text, &replaced);
    size_t from = 0, begin = 0, end = 0;
    while (from <= text.size() && Find(text, from, work, &begin, &end)) {
      match(begin, end);
      from = end;
      if (begin == end) {  // step over one character
        do ++from;
        while (from < text.size() && IsUtf8Continuation(text[from]));
      }
    }
  }
  bool Matches(std::string_view text) const;
  std::string ReplaceAll(std::string_view text, std::string_view content, Work* work) const;

 private:
  // The text that is matched, of the same size.
  std::string_view Prepare(std::string_view text, std::string* replaced) const;
  bool Find(std::string_view text, size_t from, Work* work, size_t* begin, size_t* end) const;
  enum class Near { kFound, kNone, kBehind, kUndecided };
  Near FindNear(std::string_view text, size_t* from, Work* work) const;
  int FindCounted(std::string_view text, size_t from, Work* work) const;

  std::string literal_;                               // if not empty: instead of a pattern
  std::shared_ptr<const void> near_code_, all_code_;  // pcre2_code
  std::array<bool, 256> starts_{};                    // bytes that a match may start with
  uint64_t steps_per_item_ = 1;
  std::string where_;
};

}  // namespace nibble
