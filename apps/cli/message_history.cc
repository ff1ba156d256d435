// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/message_history.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "io/atomic_file.h"
#include "io/fd.h"
#include "source/hub_cache.h"

namespace nibble::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxBytes = 64 << 20;

std::string Line(const std::string& message) {
  return Json(message).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string MessageHistory::DefaultPath() {
  const std::string state = UserState();
  return state.empty() ? "" : (fs::path(state) / "nibble/messages.jsonl").string();
}

MessageHistory::MessageHistory(std::string path) : path_(std::move(path)) {
  std::error_code error;
  if (path_.empty() || !fs::is_regular_file(path_, error)) return;
  try {
    Load();
  } catch (const std::exception&) {
    messages_.clear();
  }
}

// A file that has grown to twice what is kept is written anew.
void MessageHistory::Load() {
  std::istringstream lines(ReadFile(path_, kMaxBytes));
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json message = Json::parse(line, nullptr, false);
    if (message.is_string()) messages_.push_back(message.get<std::string>());
  }
  if (messages_.size() > kMessages) {
    messages_.erase(messages_.begin(), messages_.end() - kMessages);
  }
  if (count <= 2 * kMessages) return;
  std::string kept;
  for (const std::string& message : messages_) kept += Line(message);
  WriteFileAtomic(path_, kept);
  fs::permissions(path_, fs::perms::owner_read | fs::perms::owner_write);
}

void MessageHistory::Add(const std::string& message) {
  if (path_.empty() || message.size() > kMessageBytes) return;
  try {
    Append(Line(message));
  } catch (const std::exception& error) {
    Note("nibble: messages are not kept for the next session: {}\n", error.what());
    path_.clear();
  }
}

// Appends in one write, so that the lines of two sessions do not mix.
void MessageHistory::Append(const std::string& line) {
  std::error_code error;
  fs::create_directories(fs::path(path_).parent_path(), error);  // or else open() fails
  const Fd fd(Uninterrupted([&] {
    return open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR);
  }));
  const bool written = fd.valid() && Uninterrupted([&] {
                                       return write(fd.get(), line.data(), line.size());
                                     }) == static_cast<ssize_t>(line.size());
  if (!written) Fail("{} cannot be written ({})", path_, SystemErrorText(errno));
}

}  // namespace nibble::cli
