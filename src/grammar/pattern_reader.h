// SPDX-License-Identifier: Apache-2.0
// Reads what regular expressions and grammars write alike: escapes, classes of characters, counts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/expression.h"

namespace nibble::grammar {

class PatternReader {
 public:
  // `text` must outlive this; `where` begins messages. Refuses what is no UTF-8 or too long.
  PatternReader(std::string_view text, std::string where);

  bool done() const { return at_ == text_.size(); }
  char Peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool StartsWith(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool Take(std::string_view word);
  uint32_t TakeChar();

  // Reads what stands behind the backslash: \d \D \w \W \s \S (as in ECMAScript: digits and words
  // are ASCII's), \n \r \t \f \v \0, \xHH, \uHHHH, \u{H...}, \UHHHHHHHH, and signs for themselves.
  CharRanges TakeEscape();
  // Reads what stands behind the [, and the ] that ends it.
  CharRanges TakeClass();
  // Reads what stands behind the {, and the } that ends it; a missing largest count is kUnbounded.
  std::pair<int64_t, int64_t> TakeCounts();
  // Reads ? * + or {m,n}; returns false if none is next.
  bool TakeRepetition(int64_t* min, int64_t* max);

  // Reads alternatives with bars between, each by terms().
  template <typename Terms>
  Expr TakeAlternatives(const Terms& terms) {
    std::vector<Expr> alternatives;
    do {
      alternatives.push_back(terms());
    } while (Take("|"));
    return Choice(std::move(alternatives));
  }

  template <typename... Args>
  [[noreturn]] void Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    FailUsage("{}: at byte {}: {}", where_, at_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  uint32_t TakeHex(size_t digits);
  uint32_t TakeUnicode();
  int64_t TakeCount();
  CharRanges TakeClassItem();

  std::string_view text_;
  std::string where_;
  size_t at_ = 0;
};

}  // namespace nibble::grammar
