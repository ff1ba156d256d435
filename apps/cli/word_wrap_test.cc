// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/word_wrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "apps/cli/terminal.h"
#include "base/utf8.h"

namespace nibble::cli {
namespace {

// The lines seen on a screen that knows the sequences which WordWrap writes. Wide characters have a
// cell and an empty one behind it.
std::vector<std::string> Screen(std::string_view output) {
  std::vector<std::vector<std::string>> rows(1);
  size_t column = 0;
  for (size_t at = 0; at < output.size();) {
    if (output[at] == '\033') {
      const size_t end = output.find_first_of("DK", at);
      if (output[end] == 'D') {
        column -= static_cast<size_t>(std::stoi(std::string(output.substr(at + 2, end - at - 2))));
      } else {
        rows.back().resize(column);
      }
      at = end + 1;
      continue;
    }
    const size_t length = Utf8Length(output[at]);
    const std::string character(output.substr(at, length));
    at += length;
    if (character == "\n") {
      rows.emplace_back();
      column = 0;
      continue;
    }
    const auto width = static_cast<size_t>(CharacterColumns(CodePoint(character)));
    if (width == 0) {
      rows.back().at(column - 1) += character;
      continue;
    }
    rows.back().resize(std::max(rows.back().size(), column + width));
    rows.back().at(column) = character;
    column += width;
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    lines.emplace_back();
    for (const std::string& cell : row) lines.back() += cell;
    while (lines.back().ends_with(' ')) lines.back().pop_back();  // nobody sees it
  }
  return lines;
}

using Lines = std::vector<std::string>;

Lines Wrapped(const std::vector<std::string>& pieces, int columns) {
  UseUtf8();
  WordWrap wrap;
  std::string output;
  for (const std::string& piece : pieces) output += wrap.Push(piece, columns);
  return Screen(output);
}

TEST(WordWrap, BreaksBetweenWords) {
  EXPECT_EQ(Wrapped({"The river ran down"}, 11), (Lines{"The river", "ran down"}));
  EXPECT_EQ(Wrapped({"The ri", "ver ra", "n do", "wn"}, 8), (Lines{"The", "river", "ran", "down"}));
  EXPECT_EQ(Wrapped({"a river\n\nb\n"}, 8), (Lines{"a river", "", "b", ""}));
  EXPECT_EQ(Wrapped({"as it is, however long it may be"}, 0),
            (Lines{"as it is, however long it may be"}));
}

TEST(WordWrap, CutsWordsThatAreLongerThanALine) {
  EXPECT_EQ(Wrapped({"see abcdefghijkl now"}, 6), (Lines{"see", "abcde", "fghij", "kl", "now"}));
}

TEST(WordWrap, CountsColumnsAndNotBytes) {
  EXPECT_EQ(Wrapped({"übér straße"}, 12), (Lines{"übér straße"}));
  EXPECT_EQ(Wrapped({"e\u0301e\u0301e\u0301 e\u0301"}, 6),
            (Lines{"e\u0301e\u0301e\u0301 e\u0301"}));
  // Two columns each, and a break anywhere.
  EXPECT_EQ(Wrapped({"日本", "語です"}, 7), (Lines{"日本語", "です"}));
}

TEST(WordWrap, LeavesCodeAlone) {
  EXPECT_EQ(Wrapped({"one two three\n``", "`cpp\nint a = b + c;\n  ```\nfour five"}, 8),
            (Lines{"one two", "three", "```cpp", "int a = b + c;", "  ```", "four", "five"}));
}

TEST(WordWrap, KeepsEveryWordAndEveryLineShort) {
  std::mt19937 random(1);
  const auto below = [&](int n) { return std::uniform_int_distribution(0, n - 1)(random); };
  for (int i = 0; i < 2000; ++i) {
    const int columns = 4 + below(20);
    std::vector<std::string> pieces(1), words(1);
    for (int n = below(60); n > 0; --n) {
      const std::string character(1, "ab c\nd"[below(6)]);
      if (below(3) == 0) pieces.emplace_back();
      pieces.back() += character;
      if (character == " " || character == "\n") {
        words.emplace_back();
      } else {
        words.back() += character;
      }
    }
    const bool fit = std::ranges::all_of(
        words, [&](const std::string& word) { return static_cast<int>(word.size()) < columns; });
    std::vector<std::string> shown(1);
    for (const std::string& line : Wrapped(pieces, columns)) {
      EXPECT_LT(static_cast<int>(line.size()), columns);
      if (!shown.back().empty()) shown.emplace_back();
      for (const char c : line) {
        if (c == ' ') {
          shown.emplace_back();
        } else {
          shown.back() += c;
        }
      }
    }
    std::erase(words, "");
    std::erase(shown, "");
    if (fit) {
      EXPECT_EQ(shown, words);
    }
  }
}

}  // namespace
}  // namespace nibble::cli
