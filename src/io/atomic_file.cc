// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/error.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr char kLockName[] = "lock";
constexpr char kTemporarySuffix[] = ".tmp";

[[noreturn]] void FailErrno(const std::string& path, const char* what) {
  Fail("{}: {} ({})", path, what, std::strerror(errno));
}

// Directory part that open() accepts: "." for a bare file name.
std::string ParentOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

void Sync(int fd, const std::string& path) {
  // EINVAL: the file system cannot sync this kind of file (directories on some network mounts).
  if (fsync(fd) != 0 && errno != EINVAL) FailErrno(path, "cannot be written to disk");
}

void SyncPath(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) FailErrno(path, "cannot be opened");
  Sync(fd.get(), path);
}

void Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    FailErrno(to, fmt::format("cannot be created by renaming {}", from).c_str());
  }
}

// False if the file system does not know `flags`; other errors throw.
bool RenameWithFlags(const std::string& from, const std::string& to, unsigned flags) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) return false;
  FailErrno(to, fmt::format("cannot be created by renaming {}", from).c_str());
}

// Children before their directory, `root` last.
void CleanAndSyncTree(const fs::path& root) {
  std::vector<fs::path> order = {root};
  for (size_t i = 0; i < order.size(); ++i) {
    if (!fs::is_directory(fs::symlink_status(order[i]))) continue;
    for (const auto& entry : fs::directory_iterator(order[i])) {
      const fs::path& path = entry.path();
      if (path.extension() == kTemporarySuffix || path == root / kLockName) {
        fs::remove(path);
      } else if (entry.symlink_status().type() == fs::file_type::regular ||
                 entry.symlink_status().type() == fs::file_type::directory) {
        order.push_back(path);
      }
    }
  }
  for (auto it = order.rbegin(); it != order.rend(); ++it) SyncPath(it->string());
}

void ReplaceDirectory(const std::string& from, const std::string& to) {
  if (RenameWithFlags(from, to, RENAME_EXCHANGE)) {
    SyncPath(ParentOf(to));
    fs::remove_all(from);
    return;
  }
  const std::string aside = to + ".old";
  fs::remove_all(aside);
  Rename(to, aside);
  try {
    Rename(from, to);
  } catch (const Error&) {
    Rename(aside, to);
    throw;
  }
  SyncPath(ParentOf(to));
  fs::remove_all(aside);
}

std::string WithoutTrailingSlash(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).string();
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  static std::atomic<int> counter = 0;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) Fail("{}: is a directory", path);
  // O_EXCL with a new name, not mkstemp: the file must get the permissions of the user's umask.
  do {
    temporary_ = fmt::format("{}.{}-{}{}", path, getpid(), counter++, kTemporarySuffix);
    fd_ = Fd(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  } while (!fd_.valid() && errno == EEXIST);
  if (!fd_.valid()) FailErrno(path, "cannot be written");
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::Write(std::span<const std::byte> bytes) {
  NIBBLE_CHECK(!temporary_.empty(), "{}: write after commit", path_);
  while (!bytes.empty()) {
    const ssize_t written = write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
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

void PublishDirectory(const std::string& from, const std::string& to, bool replace) try {
  const std::string source = WithoutTrailingSlash(from), target = WithoutTrailingSlash(to);
  if (!fs::is_directory(fs::symlink_status(source))) Fail("{}: not a directory", from);
  CleanAndSyncTree(source);
  const bool exists = fs::exists(fs::symlink_status(target));
  if (exists && !replace) Fail("{}: exists already", to);
  if (exists) {
    ReplaceDirectory(source, target);
  } else if (!RenameWithFlags(source, target, RENAME_NOREPLACE)) {
    Rename(source, target);
  }
  SyncPath(ParentOf(target));
  SyncPath(ParentOf(source));
} catch (const fs::filesystem_error& e) {
  Fail("{}: cannot be published as {} ({})", from, to, e.what());
}

DirectoryLock::DirectoryLock(const std::string& directory) {
  const std::string path = (fs::path(directory) / kLockName).string();
  fd_ = Fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd_.valid()) FailErrno(path, "cannot be created");
  if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) FailErrno(path, "cannot be locked");
    Fail("{}: in use by another nibble process (it holds {})", directory, path);
  }
  // The previous holder may have published the directory, unlinking the lock, since open().
  struct stat info;
  if (fstat(fd_.get(), &info) != 0 || info.st_nlink == 0) {
    Fail("{}: was published by another nibble process just now", directory);
  }
}

}  // namespace nibble
