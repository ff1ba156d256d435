// SPDX-License-Identifier: Apache-2.0
// `nibble chat` in a terminal: keys in, what is on the screen out.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <termios.h>

#include <chrono>
#include <string_view>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

constexpr std::string_view kCtrlC = "\x03", kCtrlD = "\x04", kUp = "\x1b[A", kLeft = "\x1b[D";

// A program whose terminal this is.
class Terminal {
 public:
  explicit Terminal(const Arguments& arguments) {
    std::vector<char*> argv;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    winsize size = {.ws_row = 40, .ws_col = 120, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&keyboard_, nullptr, nullptr, &size);
    if (pid_ < 0) throw std::runtime_error("forkpty");
    if (pid_ == 0) {
      setenv("TERM", "xterm", 1);
      setenv("XDG_CACHE_HOME", "none", 1);  // no absolute path: nothing is kept
      unsetenv("HOME");
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
  // Whether `text` comes within a minute; what stood before it is in last() then.
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
  // What a shell expects of lines, as the program has set it.
  bool HandsOverLines() const {
    constexpr tcflag_t kLines = ECHO | ICANON | ISIG;
    termios settings = {};
    tcgetattr(keyboard_, &settings);
    return (settings.c_lflag & kLines) == kLines;
  }
  // Whether the program asks for a line and has taken over the keys.
  bool Asks() {
    return Shows("> ") && WaitUntil([&] { return !HandsOverLines(); });
  }
  const std::string& screen() const { return screen_; }
  const std::string& last() const { return last_; }
  int Wait() {
    while (Read()) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
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

Terminal Chat(const std::string& max_tokens) {
  return Terminal({NIBBLE_PROGRAM, "chat", kTiny, "--no-template", "--temperature", "0",
                   "--max-tokens", max_tokens});
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

}  // namespace
}  // namespace nibble
