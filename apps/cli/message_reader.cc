// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/message_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <iostream>

#include "base/error.h"

namespace nibble::cli {

// Ctrl-C is a key while a line is edited, so that the terminal never stays as the editor set it.
class MessageReader::Editor {
 public:
  Editor() : history_(history_init()), edit_(el_init("nibble", stdin, stderr, stderr)) {
    std::setlocale(LC_CTYPE, "");  // what a character is
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(
        edit_, EL_PROMPT, +[](EditLine* edit) {
          return const_cast<char*>(Of(edit).prompt_);  // libedit does not write to it
        });
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_SETTY, "-d", "-isig", nullptr);
    el_set(
        edit_, EL_ADDFN, "give-up", "Give up the message",
        +[](EditLine* edit, int) -> unsigned char {
          Of(edit).given_up_ = true;
          return CC_NEWLINE;
        });
    el_set(edit_, EL_BIND, "^C", "give-up", nullptr);
  }
  ~Editor() {
    el_end(edit_);
    history_end(history_);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  std::optional<std::string> Line(const char* prompt) {
    prompt_ = prompt;
    given_up_ = false;
    int count = 0;
    const char* line = el_gets(edit_, &count);
    if (given_up_) return Note("^C\n"), "";
    if (line == nullptr || count <= 0) return std::nullopt;
    return std::string(line, static_cast<size_t>(count) - (line[count - 1] == '\n'));
  }
  bool given_up() const { return given_up_; }
  void Remember(const std::string& message) {
    HistEvent event;
    history(history_, &event, H_ENTER, message.c_str());
  }

 private:
  static Editor& Of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<Editor*>(self);
  }

  History* history_;
  EditLine* edit_;
  const char* prompt_ = "";
  bool given_up_ = false;
};

MessageReader::MessageReader() {
  if (isatty(STDIN_FILENO) != 0) editor_ = std::make_unique<Editor>();
}
MessageReader::~MessageReader() = default;

std::optional<std::string> MessageReader::Line(const char* prompt) {
  if (editor_) return editor_->Line(prompt);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

std::optional<std::string> MessageReader::Next() {
  constexpr std::string_view kBlock = "\"\"\"";
  std::string message;
  bool block = false, more = false;
  do {
    auto line = Line(block || more ? ". " : "> ");
    if (!line && !message.empty()) return message;
    if (!line) return std::nullopt;
    if (editor_ && editor_->given_up()) return "";
    const bool bound = *line == kBlock;
    more = !block && !bound && line->ends_with('\\');
    if (more) line->back() = '\n';
    if (bound) {
      block = !block;
    } else {
      message += *line;
      if (block) message += '\n';
    }
  } while (block || more);
  if (editor_ && !message.empty()) editor_->Remember(message);
  return message;
}

}  // namespace nibble::cli
