// SPDX-License-Identifier: Apache-2.0
// Tests `nibble chat` in a terminal by the keys that go in and the screen that comes out.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCtrlC = "\x03", kCtrlD = "\x04", kUp = "\x1b[A", kLeft = "\x1b[D";

// Runs a program in a terminal of its own.
class Terminal {
 public:
  explicit Terminal(const Arguments& arguments, const std::string& state = "none") {
    std::vector<char*> argv;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    winsize size = {.ws_row = 40, .ws_col = 120, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&keyboard_, nullptr, nullptr, &size);
    if (pid_ < 0) throw std::runtime_error("forkpty");
    if (pid_ == 0) {
      setenv("TERM", "xterm", 1);
      setenv("XDG_CACHE_HOME", "none", 1);  // no absolute path: nothing is kept
      setenv("XDG_STATE_HOME", state.c_str(), 1);
      unsetenv("HOME");
      unsetenv("LANG");
      // libedit never frees the name of a function that was added to its keys.
      setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    close(keyboard_);
  }

  void Press(std::string_view keys) const {
    ASSERT_EQ(write(keyboard_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  void Resize(unsigned short rows, unsigned short columns) const {
    const winsize size = {.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(ioctl(keyboard_, TIOCSWINSZ, &size), 0);
  }
  // Returns whether `text` comes within a minute; last() is then the text before it.
  bool Shows(std::string_view text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (true) {
      if (const size_t at = screen_.find(text); at != screen_.npos) {
        last_ = screen_.substr(0, at);
        screen_.erase(0, at + text.size());
        return true;
      }
      if (std::chrono::steady_clock::now() > end || !Read()) return false;
    }
  }
  // Returns whether the program has left the terminal in the mode of a shell, which hands over
  // whole lines.
  bool HandsOverLines() const {
    constexpr tcflag_t kLines = ECHO | ICANON | ISIG;
    return (Modes() & kLines) == kLines;
  }
  // Returns whether the program asks for a line and has taken over the keys, Ctrl-C among them.
  bool Asks() {
    return Shows("> ") && WaitUntil([&] { return (Modes() & ISIG) == 0; });
  }
  const std::string& screen() const { return screen_; }
  const std::string& last() const { return last_; }
  // The exit status; of a program that stays for a minute without a word, that of SIGKILL.
  int Wait() {
    while (Read()) {
    }
    int status = 0;
    if (!WaitUntil([&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  tcflag_t Modes() const {
    termios settings = {};
    tcgetattr(keyboard_, &settings);
    return settings.c_lflag;
  }
  bool Read() {
    pollfd waited = {.fd = keyboard_, .events = POLLIN, .revents = 0};
    if (poll(&waited, 1, 60'000) <= 0) return false;
    char bytes[4096];
    const ssize_t count = read(keyboard_, bytes, sizeof(bytes));
    if (count <= 0) return false;  // the program has ended
    screen_.append(bytes, static_cast<size_t>(count));
    return true;
  }

  int keyboard_ = -1;
  pid_t pid_ = -1;
  std::string screen_, last_;
};

Terminal Chat(const std::string& max_tokens, const std::string& state = "none") {
  return Terminal({NIBBLE_PROGRAM, "chat", kTiny, "--no-template", "--temperature", "0",
                   "--max-tokens", max_tokens},
                  state);
}

TEST(TerminalChat, LinesAreEditedAndRememberedAndCtrlDEnds) {
  Terminal chat = Chat("4");
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("/sttas" + std::string(kLeft) + std::string(kLeft) + "\b" + "a\r");  // /stas
  ASSERT_TRUE(chat.Shows("there is no command /sta")) << chat.screen();
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("The river\r");
  ASSERT_TRUE(chat.Shows("4 tokens written")) << chat.screen();
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press(std::string(kUp) + "\r");
  ASSERT_TRUE(chat.Shows("The river")) << chat.screen();
  ASSERT_TRUE(chat.Shows("4 tokens written")) << chat.screen();
  chat.Press("/stats\r");
  ASSERT_TRUE(chat.Shows("4 messages")) << chat.screen();
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press(kCtrlD);
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_TRUE(chat.HandsOverLines());
}

TEST(TerminalChat, CtrlCGivesUpALine) {
  Terminal chat = Chat("4");
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("never said" + std::string(kCtrlC));
  ASSERT_TRUE(chat.Shows("^C")) << chat.screen();
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("/stats\r");
  ASSERT_TRUE(chat.Shows("0 messages")) << chat.screen();
  chat.Press("/exit\r");
  EXPECT_EQ(chat.Wait(), 0);
}

TEST(TerminalChat, CtrlCEndsAnAnswerAndNotTheProgram) {
  Terminal chat = Chat("900");
  bool stopped = false;
  for (int i = 0; i < 5 && !stopped; ++i) {  // a quick machine may be done first
    ASSERT_TRUE(chat.Asks()) << chat.screen();
    chat.Press("/reset\r");
    ASSERT_TRUE(chat.Asks()) << chat.screen();
    chat.Press("The river\r");
    ASSERT_TRUE(chat.Shows("The river\r\n")) << chat.screen();
    ASSERT_TRUE(chat.Shows(" ")) << "the answer's first words: " << chat.screen();
    chat.Press(kCtrlC);
    ASSERT_TRUE(chat.Shows("stopped: ")) << chat.screen();
    ASSERT_TRUE(chat.Shows("\n")) << chat.screen();
    stopped = chat.last().starts_with("Ctrl-C");
  }
  EXPECT_TRUE(stopped);
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("/stats\r");
  ASSERT_TRUE(chat.Shows("2 messages")) << chat.screen();
  chat.Press("/exit\r");
  EXPECT_EQ(chat.Wait(), 0);
}

class TerminalFiles : public EndToEnd {};

TEST_F(TerminalFiles, WhatIsPastedIsOneMessage) {
  Terminal chat = Chat("2");
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("say \x1b[200~The river\ris \"\xc3\xa9t\xc3\xa9\"\x03\r\x1b[201~!\r");
  ASSERT_TRUE(chat.Shows("2 tokens written")) << chat.screen();
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("/save " + Path("saved.json") + "\r");
  ASSERT_TRUE(chat.Shows("2 messages saved in")) << chat.screen();
  EXPECT_EQ(ParseJson(Slurp(Path("saved.json")), "saved")[0]["content"],
            "say The river\nis \"\xc3\xa9t\xc3\xa9\"!");
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press(kCtrlD);
  EXPECT_EQ(chat.Wait(), 0);
}

TEST_F(TerminalFiles, MessagesAreThereInTheNextSession) {
  Terminal first = Chat("2", Path("state"));
  ASSERT_TRUE(first.Asks()) << first.screen();
  first.Press("The river\r");
  ASSERT_TRUE(first.Shows("2 tokens written")) << first.screen();
  ASSERT_TRUE(first.Asks()) << first.screen();
  first.Press(kCtrlD);
  EXPECT_EQ(first.Wait(), 0);
  Terminal second = Chat("2", Path("state"));
  ASSERT_TRUE(second.Asks()) << second.screen();
  second.Press(std::string(kUp) + "\r");
  ASSERT_TRUE(second.Shows("The river")) << second.screen();
  ASSERT_TRUE(second.Shows("2 tokens written")) << second.screen();
  EXPECT_TRUE(fs::exists(Path("state/nibble/messages.jsonl")));
}

TEST_F(TerminalFiles, AFileOfOthersIsNotWrittenOverUnasked) {
  Spill(Path("notes.json"), "mine");
  Terminal chat = Chat("2");
  for (const auto& [answer, shown] : {std::pair("n\r", "not saved"), {"y\r", "0 messages saved"}}) {
    ASSERT_TRUE(chat.Asks()) << chat.screen();
    EXPECT_EQ(Slurp(Path("notes.json")), "mine");
    chat.Press("/save " + Path("notes.json") + "\r");
    ASSERT_TRUE(chat.Shows("write over it?")) << chat.screen();
    chat.Press(answer);
    ASSERT_TRUE(chat.Shows(shown)) << chat.screen();
  }
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("/save " + Path("notes.json") + "\r");  // the file is the conversation's own by now
  ASSERT_TRUE(chat.Shows("0 messages saved")) << chat.screen();
}

TEST(TerminalChat, KeysDuringAnAnswerWaitAndDoNotShow) {
  Terminal chat = Chat("300");
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("The river\r");
  ASSERT_TRUE(chat.Shows("The river\r\n")) << chat.screen();
  ASSERT_TRUE(chat.Shows(" ")) << "the answer's first words: " << chat.screen();
  chat.Press("/sta#ts\b\b\b");
  ASSERT_TRUE(chat.Shows("tokens written")) << chat.screen();
  EXPECT_EQ(chat.last().find('#'), std::string::npos);
  ASSERT_TRUE(chat.Shows("/sta")) << "in the next line: " << chat.screen();
  chat.Press("ts\r");
  ASSERT_TRUE(chat.Shows("2 messages")) << chat.screen();
  chat.Press(kCtrlD);
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_TRUE(chat.HandsOverLines());
}

// A terminal that collected whole lines meanwhile would make a byte 0 of it.
TEST(TerminalChat, CtrlDDuringAnAnswerEndsTheProgramBehindIt) {
  Terminal chat = Chat("300");
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("The river\r");
  ASSERT_TRUE(chat.Shows("The river\r\n")) << chat.screen();
  ASSERT_TRUE(chat.Shows(" ")) << "the answer's first words: " << chat.screen();
  chat.Press(kCtrlD);
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_NE(chat.screen().find("tokens written"), std::string::npos) << chat.screen();
  EXPECT_TRUE(chat.HandsOverLines());
}

TEST(TerminalChat, LinesGoOnWhenTheTerminalChangesItsSize) {
  Terminal chat = Chat("60");
  ASSERT_TRUE(chat.Asks()) << chat.screen();
  chat.Press("The ");
  ASSERT_TRUE(chat.Shows("The ")) << chat.screen();
  chat.Resize(20, 30);
  ASSERT_TRUE(chat.Shows("> The ")) << "shown anew: " << chat.screen();
  chat.Press("river\r");
  ASSERT_TRUE(chat.Shows("prompt ")) << chat.screen();
  // The lines of the answer are broken for 30 columns.
  std::string answer = chat.last().substr(chat.last().find("river") + 5);
  size_t column = 0;
  for (size_t at = 0; at < answer.size(); ++at) {
    if (answer[at] == '\x1b')
      at = answer.find_first_of("DKhl", at);
    else
      column = answer[at] == '\n' ? 0 : column + 1;
    EXPECT_LE(column, 31u) << answer;  // with \r and the erased beginning of a long word
  }
  EXPECT_GE(std::ranges::count(answer, '\n'), 4);
  chat.Press(kCtrlD);
  EXPECT_EQ(chat.Wait(), 0);
}

}  // namespace
}  // namespace nibble
