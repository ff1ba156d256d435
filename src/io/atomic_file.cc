// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/error.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporarySuffix = ".tmp";

void Sync(int fd, const std::string& path) {
  // EINVAL: the file system cannot sync this kind of file (directories on some network mounts).
  if (Uninterrupted([&] { return fsync(fd); }) != 0 && errno != EINVAL)
    FailErrno(path, "cannot be written to disk");
}

}  // namespace

void FailErrno(const std::string& path, std::string_view what) {
  Fail("{}: {} ({})", path, what, SystemErrorText(errno));
}

std::string ParentOf(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void SyncPath(const std::string& path) {
  const Fd fd(Uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!fd.valid()) FailErrno(path, "cannot be opened");
  Sync(fd.get(), path);
}

void Rename(const std::string& from, const std::string& to) {
  if (Uninterrupted([&] { return rename(from.c_str(), to.c_str()); }) != 0) {
    FailErrno(to, fmt::format("cannot be created by renaming {}", from));
  }
}

void RemoveFile(const std::string& path) {
  if (Uninterrupted([&] { return unlink(path.c_str()); }) != 0 && errno != ENOENT) {
    FailErrno(path, "cannot be removed");
  }
}

void CreateDirectories(const std::string& path) {
  std::error_code error;
  do {
    fs::create_directories(path, error);
  } while (error == std::errc::interrupted);
  if (error) Fail("{}: cannot be created ({})", path, SystemErrorText(error.value()));
}

std::string_view TargetOfTemporary(std::string_view name) {
  if (!name.ends_with(kTemporarySuffix)) return {};
  name.remove_suffix(kTemporarySuffix.size());
  const size_t dot = name.rfind('.');
  if (dot == name.npos || name.find_first_not_of("0123456789-", dot + 1) != name.npos) return {};
  return name.substr(0, dot);
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  static std::atomic<int> counter = 0;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) Fail("{}: is a directory", path);
  // O_EXCL with a new name, not mkstemp: the file must get the permissions of the user's umask.
  do {
    temporary_ = fmt::format("{}.{}-{}{}", path, getpid(), counter++, kTemporarySuffix);
    fd_ = Fd(Uninterrupted(
        [&] { return open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }));
  } while (!fd_.valid() && errno == EEXIST);
  if (!fd_.valid()) FailErrno(path, "cannot be written");
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) Uninterrupted([&] { return unlink(temporary_.c_str()); });
}

void AtomicFile::Write(std::span<const std::byte> bytes) {
  NIBBLE_CHECK(!temporary_.empty(), "{}: write after commit", path_);
  while (!bytes.empty()) {
    const ssize_t written =
        Uninterrupted([&] { return write(fd_.get(), bytes.data(), bytes.size()); });
    if (written < 0) FailErrno(path_, "cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::Write(std::string_view text) {
  Write(std::as_bytes(std::span(text)));
}

void AtomicFile::Commit() {
  NIBBLE_CHECK(!temporary_.empty(), "{}: committed twice", path_);
  Sync(fd_.get(), path_);
  fd_ = Fd();
  Rename(temporary_, path_);
  temporary_.clear();
  SyncPath(ParentOf(path_));
}

void WriteFileAtomic(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.Write(text);
  file.Commit();
}

}  // namespace nibble
