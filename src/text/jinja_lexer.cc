// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_lexer.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>

#include "base/utf8.h"
#include "text/jinja_text.h"
#include "text/jinja_value.h"

namespace nibble::jinja {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}
bool IsNameChar(char c) {
  return IsDigit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

std::string NormalizeNewlines(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(NormalizeNewlines(source)) {}

  std::vector<Token> Run() {
    while (pos_ < text_.size()) {
      const size_t begin = FindTag();
      const std::string_view data = View(pos_, begin);
      if (begin == text_.size()) {
        AddData(data);
        break;
      }
      const char kind = text_[begin + 1];
      const char mark = begin + 2 < text_.size() ? text_[begin + 2] : '\0';
      AddData(TrimBeforeTag(data, kind, mark));
      Advance(begin + (mark == '-' || mark == '+' ? 3 : 2));
      if (kind == '#') {
        SkipComment();
      } else if (const size_t end = FindEndOfWord(pos_, "raw");
                 kind == '%' && end != std::string::npos) {
        LexRaw(end);
      } else {
        LexCode(kind == '%');
      }
    }
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view View(size_t begin, size_t end) const {
    return std::string_view(text_).substr(begin, end - begin);
  }
  bool At(std::string_view expected) const {
    return std::string_view(text_).substr(pos_).starts_with(expected);
  }
  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }
  void AddData(std::string_view data) {
    if (!data.empty()) Add(TokenKind::kData, std::string(data));
  }
  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + pos_, text_.begin() + to, '\n'));
    pos_ = to;
  }
  void SkipSpace() { Advance(text_.size() - Strip(View(pos_, text_.size()), Side::kLeft).size()); }

  size_t FindTag() const {
    size_t at = text_.find('{', pos_);
    while (at != std::string::npos && at + 1 < text_.size()) {
      if (text_[at + 1] == '%' || text_[at + 1] == '{' || text_[at + 1] == '#') return at;
      at = text_.find('{', at + 1);
    }
    return text_.size();
  }

  std::string_view TrimBeforeTag(std::string_view data, char kind, char mark) const {
    if (mark == '-') return Strip(data, Side::kRight);
    if (mark == '+' || kind == '{') return data;
    const size_t newline = data.rfind('\n');  // lstrip_blocks: blanks between line start and tag
    const bool line_starts =
        newline != std::string_view::npos || pos_ == 0 || text_[pos_ - 1] == '\n';
    const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    return line_starts && Strip(data.substr(start), Side::kLeft).empty() ? data.substr(0, start)
                                                                         : data;
  }

  // After a closing "%}" or "#}" whose mark is given.
  void TrimAfterTag(char mark) {
    if (mark == '-') {
      SkipSpace();
    } else if (mark != '+' && At("\n")) {
      Advance(pos_ + 1);
    }
  }

  void SkipComment() {
    const size_t end = text_.find("#}", pos_);
    if (end == std::string::npos) Raise("line {}: missing end of comment", line_);
    const char mark = end > pos_ ? text_[end - 1] : '\0';
    Advance(end + 2);
    TrimAfterTag(mark);
  }

  // If the only word of the tag whose inside starts at `at` is `word`: where its end mark is.
  size_t FindEndOfWord(size_t at, std::string_view word) const {
    const std::string_view rest = Strip(View(at, text_.size()), Side::kLeft);
    if (!rest.starts_with(word)) return std::string::npos;
    const std::string_view tail = Strip(rest.substr(word.size()), Side::kLeft);
    const bool closes =
        tail.starts_with("%}") || tail.starts_with("-%}") || tail.starts_with("+%}");
    return closes ? text_.size() - tail.size() : std::string::npos;
  }

  // `close` is where the end mark of the opening tag is.
  void LexRaw(size_t close) {
    const bool strip = text_[close] == '-';
    Advance(text_.find("%}", close) + 2);
    if (strip) SkipSpace();
    for (size_t at = text_.find("{%", pos_); at != std::string::npos;
         at = text_.find("{%", at + 2)) {
      const char mark = at + 2 < text_.size() ? text_[at + 2] : '\0';
      const size_t inside = at + (mark == '-' || mark == '+' ? 3 : 2);
      const size_t end = FindEndOfWord(inside, "endraw");
      if (end == std::string::npos) continue;
      AddData(TrimBeforeTag(View(pos_, at), '%', mark));
      Advance(text_.find("%}", end) + 2);
      return TrimAfterTag(text_[end]);
    }
    Raise("line {}: missing end of raw", line_);
  }

  void LexCode(bool block) {
    Add(block ? TokenKind::kBlockBegin : TokenKind::kOutputBegin, "");
    const std::string_view close = block ? "%}" : "}}";
    std::string brackets;
    while (true) {
      SkipSpace();
      if (pos_ >= text_.size()) Raise("line {}: tag is not closed", line_);
      const bool marked = text_[pos_] == '-' || (block && text_[pos_] == '+');
      if (brackets.empty() && View(pos_ + marked, text_.size()).starts_with(close)) {
        const char mark = marked ? text_[pos_] : '\0';
        Add(block ? TokenKind::kBlockEnd : TokenKind::kOutputEnd, "");
        Advance(pos_ + marked + 2);
        if (block || mark == '-') TrimAfterTag(mark);
        return;
      }
      LexToken(brackets);
    }
  }

  void LexToken(std::string& brackets) {
    const char c = text_[pos_];
    if (c == '\'' || c == '"') return LexString(c);
    if (IsDigit(c)) return LexNumber();
    size_t end = pos_;
    if (IsNameChar(c)) {
      while (end < text_.size() && IsNameChar(text_[end])) ++end;
      if (end - pos_ > kMaxNameBytes) {
        Raise("line {}: a name longer than {} bytes", line_, kMaxNameBytes);
      }
      Add(TokenKind::kName, std::string(View(pos_, end)));
      return Advance(end);
    }
    static constexpr std::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "(",
        ")",  "[",  "]",  "{",  "}",  "<",  ">", "=", ".", ":", "|", ","};
    const auto* op = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [&](std::string_view candidate) { return At(candidate); });
    if (op == std::end(kOperators)) Raise("line {}: unexpected character '{}'", line_, c);
    if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (!brackets.ends_with(c)) Raise("line {}: unexpected '{}'", line_, c);
      brackets.pop_back();
    }
    Add(TokenKind::kOperator, std::string(*op));
    Advance(pos_ + op->size());
  }

  void LexNumber() {
    if (text_[pos_] == '0' && LexBasedNumber()) return;
    const auto digits = [&](size_t at) {
      while (at < text_.size() &&
             (IsDigit(text_[at]) || (text_[at] == '_' && IsDigit(text_[at - 1]))))
        ++at;
      return at;
    };
    const auto is_digit = [&](size_t at) { return at < text_.size() && IsDigit(text_[at]); };
    size_t end = digits(pos_);
    const size_t integer_end = end;
    if (text_[pos_ - 1] != '.') {  // in x.0.1 both are subscripts
      if (end < text_.size() && text_[end] == '.' && is_digit(end + 1)) end = digits(end + 1);
      if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
        const size_t sign =
            end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-');
        if (is_digit(end + 1 + sign)) end = digits(end + 1 + sign);
      }
    }
    std::string number(View(pos_, end));
    std::erase(number, '_');
    Add(end == integer_end ? TokenKind::kInteger : TokenKind::kFloat, std::move(number));
    Advance(end);
  }

  // 0x1F, 0o17 or 0b11.
  bool LexBasedNumber() {
    const char mark = pos_ + 1 < text_.size() ? text_[pos_ + 1] : '\0';
    const std::string_view digits = mark == 'x' || mark == 'X'   ? "0123456789abcdefABCDEF_"
                                    : mark == 'o' || mark == 'O' ? "01234567_"
                                    : mark == 'b' || mark == 'B' ? "01_"
                                                                 : "";
    const size_t end = std::min(text_.find_first_not_of(digits, pos_ + 2), text_.size());
    if (digits.empty() || end == pos_ + 2) return false;
    std::string number(View(pos_, end));
    std::erase(number, '_');
    Add(TokenKind::kInteger, std::move(number));
    Advance(end);
    return true;
  }

  void LexString(char quote) {
    const int line = line_;
    std::string value;
    size_t at = pos_ + 1;
    while (at < text_.size() && text_[at] != quote) {
      if (text_[at] == '\\' && at + 1 < text_.size()) {
        at = Unescape(at + 1, value);
      } else {
        value += text_[at++];
      }
    }
    if (at >= text_.size()) Raise("line {}: string is not closed", line);
    Add(TokenKind::kString, std::move(value));
    Advance(at + 1);
  }

  // `at` is behind the backslash; returns the position behind the escape.
  size_t Unescape(size_t at, std::string& value) const {
    static constexpr std::string_view kSimple = "n\nt\tr\ra\ab\bf\fv\v\\\\''\"\"";
    const char c = text_[at];
    if (c == '\n') return at + 1;
    if (c == 'N') Raise("line {}: characters by name, \\N{{...}}, are not supported", line_);
    for (size_t i = 0; i < kSimple.size(); i += 2) {
      if (kSimple[i] == c) return value += kSimple[i + 1], at + 1;
    }
    const bool octal = c >= '0' && c <= '7';
    const size_t width = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (width == 0) return value += '\\', at;  // Python keeps an unknown escape
    const size_t begin = octal ? at : at + 1;
    const char* const first = text_.data() + begin;
    uint32_t code = 0;
    const auto parsed =
        std::from_chars(first, first + std::min(width, text_.size() - begin), code, octal ? 8 : 16);
    if (parsed.ptr == first || (!octal && parsed.ptr != first + width) ||
        !utf8proc_codepoint_valid(static_cast<utf8proc_int32_t>(code))) {
      Raise("line {}: bad escape in a string", line_);
    }
    AppendUtf8(static_cast<uint32_t>(code), &value);
    return begin + static_cast<size_t>(parsed.ptr - first);
  }

  std::string text_;
  size_t pos_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) {
  return Lexer(source).Run();
}

}  // namespace nibble::jinja
