// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/line_editor.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cwchar>
#include <string_view>

#include "apps/cli/terminal.h"
#include "base/error.h"
#include "base/interrupt.h"

namespace nibble::cli {
namespace {

constexpr int kEarlierMessages = 1000;
// A terminal in this mode puts these around what is pasted (xterm's control sequences).
constexpr const char *kMarkPastes = "\033[?2004h", *kNoMarks = "\033[?2004l";
constexpr const char* kPasteBegins = "\033[200~";
constexpr std::wstring_view kPasteEnds = L"\033[201~";

volatile std::sig_atomic_t resized = 0;

void OnResize(int) {
  resized = 1;
}

// The pasted text with lines that end with \n, without control characters other than tabs.
std::wstring Plain(const std::wstring& pasted) {
  std::wstring text;
  for (const wchar_t c : pasted) {
    if (c == L'\r' || c == L'\n') text += L'\n';
    if (c == L'\t' || (c >= L' ' && c != 0x7f)) text += c;
  }
  while (text.ends_with(L'\n')) text.pop_back();
  return text;
}

}  // namespace

LineEditor::LineEditor()
    : history_(history_init()), edit_(el_init("nibble", stdin, stderr, stderr)) {
  UseUtf8();
  HistEvent event;
  history(history_, &event, H_SETSIZE, kEarlierMessages);
  history(history_, &event, H_SETUNIQUE, 1);
  el_set(edit_, EL_CLIENTDATA, this);
  el_set(
      edit_, EL_PROMPT, +[](EditLine* edit) {
        return const_cast<char*>(Of(edit).prompt_);  // libedit does not write to it
      });
  el_set(edit_, EL_EDITOR, "emacs");
  el_set(edit_, EL_HIST, history, history_);
  el_set(edit_, EL_SETTY, "-d", "-isig", nullptr);
  // While no line is edited keys do not show and wait for the next line as they are: a terminal
  // that collects whole lines would turn an early Ctrl-D into a byte 0.
  el_set(edit_, EL_SETTY, "-x", "-icanon", "-echo", nullptr);
  el_set(edit_, EL_GETCFN, &LineEditor::ReadKey);
  el_set(
      edit_, EL_ADDFN, "give-up", "Give up the message", +[](EditLine* edit, int) -> unsigned char {
        Of(edit).given_up_ = true;
        return CC_NEWLINE;
      });
  el_set(edit_, EL_BIND, "^C", "give-up", nullptr);
  el_set(edit_, EL_ADDFN, "paste", "Insert what is pasted", &LineEditor::Paste);
  el_set(edit_, EL_BIND, kPasteBegins, "paste", nullptr);
  std::signal(SIGWINCH, OnResize);
}

LineEditor::~LineEditor() {
  std::signal(SIGWINCH, SIG_DFL);
  el_end(edit_);
  history_end(history_);
}

std::optional<std::string> LineEditor::Line(const char* prompt) {
  prompt_ = prompt;
  given_up_ = false;
  const bool marks = KnowsControlSequences();
  if (marks) Note("{}", kMarkPastes);
  int count = 0;
  const char* line = el_gets(edit_, &count);
  if (marks) Note("{}", kNoMarks);
  if (given_up_) return Note("^C\n"), "";
  if (line == nullptr || count <= 0) return Note("\n"), std::nullopt;  // Ctrl-D moves no cursor
  return std::string(line, static_cast<size_t>(count) - (line[count - 1] == '\n'));
}

void LineEditor::Remember(const std::string& message) {
  HistEvent event;
  history(history_, &event, H_ENTER, message.c_str());
}

LineEditor& LineEditor::Of(EditLine* edit) {
  void* self = nullptr;
  el_get(edit, EL_CLIENTDATA, &self);
  return *static_cast<LineEditor*>(self);
}

// Returns whether there is a byte to read; if not, the program is to end.
bool LineEditor::WaitForByte() {
  constexpr int kMilliseconds = 500;  // until a signal that came right before poll() is seen
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  while (!Interrupted()) {
    if (resized != 0) {
      resized = 0;
      el_resize(edit_);
      if (KnowsControlSequences()) Note("\r\033[J");
      el_set(edit_, EL_REFRESH);
    }
    if (poll(&input, 1, kMilliseconds) > 0) return true;
  }
  return false;
}

// libedit's el_rfunc_t: returns 1, or 0 at the end.
int LineEditor::ReadKey(EditLine* edit, wchar_t* key) {
  std::mbstate_t state = {};
  for (;;) {
    char byte = 0;
    if (!Of(edit).WaitForByte() || read(STDIN_FILENO, &byte, 1) != 1) return 0;
    const size_t length = std::mbrtowc(key, &byte, 1, &state);
    if (length == static_cast<size_t>(-2)) continue;  // more bytes to come
    if (length == static_cast<size_t>(-1)) *key = L'\uFFFD';
    return 1;
  }
}

unsigned char LineEditor::Paste(EditLine* edit, int) {
  std::wstring text;
  for (wchar_t key = 0; !text.ends_with(kPasteEnds);) {
    if (el_wgetc(edit, &key) != 1) return CC_EOF;
    text += key;
  }
  text.resize(text.size() - kPasteEnds.size());
  return el_winsertstr(edit, Plain(text).c_str()) == 0 ? CC_REFRESH : CC_REFRESH_BEEP;
}

}  // namespace nibble::cli
