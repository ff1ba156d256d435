// SPDX-License-Identifier: Apache-2.0
// Regular expressions of tokenizer.json, matched by PCRE2 (JIT). The files are written for
// Oniguruma; constructs that the two engines read differently are refused, so a pattern that loads
// gives the same pieces. Patterns that people type are PCRE2's as they are. Copies share the
// compiled pattern; matching is thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nibble {

class Regex {
 public:
  enum class Syntax { kPattern, kLiteral, kPcre2 };

  // `where` names the pattern in messages. An invalid or refused pattern is an Error.
  Regex(std::string_view pattern, Syntax syntax, std::string where);

  // Calls match(begin, end) for the non-overlapping matches, left to right. `text` must be valid
  // UTF-8. A pattern that backtracks far beyond the text's length is an Error.
  void ForEachMatch(std::string_view text,
                    const std::function<void(size_t begin, size_t end)>& match) const;
  bool Matches(std::string_view text) const;
  std::string ReplaceAll(std::string_view text, std::string_view content) const;

 private:
  bool Find(std::string_view text, size_t from, size_t* begin, size_t* end) const;

  std::shared_ptr<const void> code_;  // pcre2_code
  bool literal_;
  std::string where_;
};

}  // namespace nibble
