// SPDX-License-Identifier: Apache-2.0
#include "eval/results_file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "eval/json_lines.h"
#include "io/atomic_file.h"

namespace nibble {
namespace {

[[noreturn]] void FailErrno(const std::string& path, const char* what) {
  Fail("{}: {} ({})", path, what, SystemErrorText(errno));
}

std::vector<Likelihood> ReadAnswer(const Json& line, const std::string& where) {
  const auto values = JsonGet<std::vector<double>>(line, "log_likelihoods", where);
  const auto greedy = JsonGet<std::vector<bool>>(line, "greedy", where);
  if (values.size() != greedy.size())
    Fail("{}: log_likelihoods and greedy differ in length", where);
  std::vector<Likelihood> answer;
  for (size_t i = 0; i < values.size(); ++i) answer.push_back({values[i], greedy[i]});
  return answer;
}

std::string AnswerLine(const ResultsFile::Key& key, const std::vector<Likelihood>& answer) {
  Json values = Json::array(), greedy = Json::array();
  for (const Likelihood& l : answer) {
    values.push_back(l.log_likelihood);
    greedy.push_back(l.greedy);
  }
  const Json line = {{"task", key.first},
                     {"question", key.second},
                     {"log_likelihoods", values},
                     {"greedy", greedy}};
  return line.dump() + "\n";
}

}  // namespace

ResultsFile::ResultsFile(const std::string& path, const Json& identity, bool resume) : path_(path) {
  const bool found = std::filesystem::exists(path);
  if (found && !resume) {
    Fail("{} exists already; pass --resume to continue it, or remove it", path);
  }
  if (!found) WriteFileAtomic(path, identity.dump() + "\n");
  fd_ = Fd(Uninterrupted([&] { return open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC); }));
  if (!fd_.valid()) FailErrno(path, "cannot be opened");
  if (Uninterrupted([&] { return flock(fd_.get(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno != EWOULDBLOCK) FailErrno(path, "cannot be locked");
    Fail("{}: in use by another nibble process", path);
  }
  if (found) Read(identity);
}

void ResultsFile::Read(const Json& identity) {
  const std::string text = ReadFile(path_, uint64_t{1} << 30);
  const size_t whole = text.rfind('\n') + 1;  // 0 when there is none
  if (whole < text.size() && ftruncate(fd_.get(), static_cast<off_t>(whole)) != 0) {
    FailErrno(path_, "cannot be written");
  }
  bool first = true;
  ReadJsonLines(path_, [&](const Json& line, const std::string& where) {
    if (!first) {
      const Key key = {JsonGet<std::string>(line, "task", where),
                       JsonGet<int64_t>(line, "question", where)};
      answers_[key] = ReadAnswer(line, where);
      return true;
    }
    first = false;
    std::string differing;
    for (const auto& [field, value] : identity.items()) {
      if (line.contains(field) && line[field] == value) continue;
      differing += (differing.empty() ? "" : ", ") + field;
    }
    if (!differing.empty()) {
      Fail("{} was started with other settings ({}); repeat them or remove it", path_, differing);
    }
    return true;
  });
  if (first) Fail("{}: not a file of results", path_);
}

void ResultsFile::Append(const std::string& task, int64_t first,
                         std::span<const std::vector<Likelihood>> answers) {
  std::string text;
  for (const auto& answer : answers) text += AnswerLine({task, first++}, answer);
  for (size_t done = 0; done < text.size();) {
    const ssize_t written =
        Uninterrupted([&] { return write(fd_.get(), text.data() + done, text.size() - done); });
    if (written <= 0) FailErrno(path_, "cannot be written");
    done += static_cast<size_t>(written);
  }
}

}  // namespace nibble
