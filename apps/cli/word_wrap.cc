// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/word_wrap.h"

#include <fmt/format.h>

#include <utility>

#include "apps/cli/terminal.h"
#include "base/utf8.h"

namespace nibble::cli {
namespace {

constexpr std::string_view kFence = "```";
constexpr int kTab = 8;

}  // namespace

std::string WordWrap::Push(std::string_view piece, int columns) {
  ForEachCharacter(piece, [&](uint32_t code_point, size_t begin, size_t end) {
    const std::string_view character = piece.substr(begin, end - begin);
    if (code_point == '\n') return EndLine();
    if (line_start_.size() < kFence.size() && (code_point != ' ' || !line_start_.empty())) {
      line_start_ += character;
    }
    const int width = code_point == '\t' ? kTab - column_ % kTab : CharacterColumns(code_point);
    // The last column is left free: a cursor behind it stands still in some terminals.
    Add(character, width, code_ ? 0 : columns - 1);
  });
  return std::exchange(out_, {});
}

void WordWrap::EndLine() {
  if (line_start_ == kFence) code_ = !code_;
  out_ += '\n';
  line_start_.clear();
  word_.clear();
  column_ = word_columns_ = 0;
}

void WordWrap::Add(std::string_view character, int width, int columns) {
  const bool space = character == " " || character == "\t";
  if (columns > 0 && column_ + width > columns) {
    if (space || word_columns_ == column_) {  // or a word as long as the line
      word_.clear();
      out_ += '\n';
    } else {
      if (word_columns_ > 0) out_ += fmt::format("\033[{}D\033[K", word_columns_);
      out_ += '\n' + word_;
    }
    column_ = word_columns_ = word_.empty() ? 0 : word_columns_;
    if (space) return;
  }
  out_ += character;
  column_ += width;
  if (space || width > 1) {  // texts of wide characters break anywhere
    word_.clear();
    word_columns_ = 0;
  } else {
    word_ += character;
    word_columns_ += width;
  }
}

}  // namespace nibble::cli
