// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/message_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "io/io_testing.h"

namespace nibble::cli {
namespace {

namespace fs = std::filesystem;
using Messages = std::vector<std::string>;

class MessageHistoryTest : public TemporaryDirectoryTest {
 protected:
  void SetUp() override {
    TemporaryDirectoryTest::SetUp();
    path_ = Path("state/nibble/messages.jsonl");
  }

  std::string path_;

  Messages Kept() const { return MessageHistory(path_).messages(); }
};

TEST_F(MessageHistoryTest, IsThereInTheNextSession) {
  MessageHistory history(path_);
  EXPECT_TRUE(history.messages().empty());
  const Messages messages = {"Good day", "two\nlines", "\"quoted\" \\ été \xff"};
  for (const std::string& message : messages) history.Add(message);
  EXPECT_EQ(Kept(), (Messages{messages[0], messages[1], "\"quoted\" \\ été \uFFFD"}));
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(MessageHistoryTest, SkipsWhatIsDamaged) {
  fs::create_directories(fs::path(path_).parent_path());
  std::ofstream(path_) << "\"one\"\n{\"two\"\n3\n\n\"four\"\n\"cut";
  EXPECT_EQ(Kept(), (Messages{"one", "four"}));
}

TEST_F(MessageHistoryTest, KeepsTheNewest) {
  const size_t many = 2 * MessageHistory::kMessages + 1;
  MessageHistory history(path_);
  for (size_t i = 0; i < many; ++i) history.Add(std::to_string(i));
  history.Add(std::string(MessageHistory::kMessageBytes + 1, 'x'));  // too long
  const Messages kept = Kept();
  ASSERT_EQ(kept.size(), MessageHistory::kMessages);
  EXPECT_EQ(kept.front(), std::to_string(many - MessageHistory::kMessages));
  EXPECT_EQ(kept.back(), std::to_string(many - 1));
  const std::string file = ReadFile(path_, 1 << 20);
  EXPECT_EQ(std::ranges::count(file, '\n'), static_cast<long>(MessageHistory::kMessages));
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(Kept(), kept);
}

TEST_F(MessageHistoryTest, TwoSessionsWriteWholeLines) {
  const auto write = [&](char c) {
    MessageHistory history(path_);
    for (int i = 0; i < 200; ++i) history.Add(std::string(100, c));
  };
  std::thread other(write, 'a');
  write('b');
  other.join();
  const Messages kept = Kept();
  EXPECT_EQ(std::ranges::count(kept, std::string(100, 'a')), 200);
  EXPECT_EQ(std::ranges::count(kept, std::string(100, 'b')), 200);
}

TEST_F(MessageHistoryTest, AFileThatCannotBeWrittenIsNamedOnce) {
  std::ofstream(Path("file"));
  MessageHistory history(Path("file/nibble/messages.jsonl"));
  testing::internal::CaptureStderr();
  history.Add("one");
  history.Add("two");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("not kept for the next session"), said.npos);
  EXPECT_EQ(std::ranges::count(said, '\n'), 1);
}

TEST_F(MessageHistoryTest, NothingIsKeptWithoutAPlace) {
  MessageHistory history("");
  history.Add("one");
  EXPECT_TRUE(history.messages().empty());
}

}  // namespace
}  // namespace nibble::cli
