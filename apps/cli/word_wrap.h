// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace nibble::cli {

// A text that comes in pieces, broken between words at a terminal's edge. Each piece shows at once:
// a word that turns out too long for its line is erased there and goes on in the next. Code between
// lines of ``` is left to the terminal, so that it can be copied.
class WordWrap {
 public:
  // Returns the text to print for `piece`, valid UTF-8, on a terminal of so many columns; with 0,
  // the piece itself.
  std::string Push(std::string_view piece, int columns);

 private:
  void Add(std::string_view character, int width, int columns);
  void EndLine();

  std::string out_;
  std::string line_start_;  // the first characters of the line, as far as they may be a fence
  std::string word_;        // printed since the last place to break
  int column_ = 0, word_columns_ = 0;
  bool code_ = false;
};

}  // namespace nibble::cli
