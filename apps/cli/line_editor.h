// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <histedit.h>

#include <optional>
#include <string>

namespace nibble::cli {

// Lines with keys to edit them (libedit) and earlier messages above. A pasted text is one line,
// whatever lines it has; the terminal may change its size. Ctrl-C is a key while a line is edited,
// so that the terminal never stays as the editor set it.
class LineEditor {
 public:
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Returns the line without its end; nothing after Ctrl-D, where the terminal is gone or the
  // program is to end.
  std::optional<std::string> Line(const char* prompt);
  // Returns whether Ctrl-C ended the last line.
  bool given_up() const { return given_up_; }
  void Remember(const std::string& message);

 private:
  static LineEditor& Of(EditLine* edit);
  static int ReadKey(EditLine* edit, wchar_t* key);
  static unsigned char Paste(EditLine* edit, int key);
  bool WaitForByte();

  History* history_;
  EditLine* edit_;
  const char* prompt_ = "";
  bool given_up_ = false;
};

}  // namespace nibble::cli
