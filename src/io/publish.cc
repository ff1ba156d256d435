// SPDX-License-Identifier: Apache-2.0
#include "io/publish.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "io/atomic_file.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr char kLockName[] = "lock";
// This file stays in `to` until the directory that `to` replaced is removed, and holds that
// directory's device and inode.
constexpr char kReplacedName[] = "replaced";

bool IsOurs(std::string_view name, const KnownFile& known) {
  const std::string_view target = TargetOfTemporary(name);
  return target.empty() ? IsWritersOwn(name) || known(name) : IsOurs(target, known);
}

// Returns false if the file system does not know `flags`; other errors throw.
bool RenameWithFlags(const std::string& from, const std::string& to, unsigned flags) {
  const int result =
      Uninterrupted([&] { return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags); });
  if (result == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) return false;
  FailErrno(to, fmt::format("cannot be created by renaming {}", from));
}

void CleanAndSync(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) files.push_back(entry.path());
  for (const fs::path& file : files) {
    const std::string name = file.filename().string();
    if (name == kLockName || !TargetOfTemporary(name).empty()) {
      RemoveFile(file.string());
    } else {
      SyncPath(file.string());
    }
  }
  SyncPath(directory.string());
}

// A line "device:inode" of a directory; empty if there is no such directory.
std::string NumberOf(const std::string& directory) {
  struct stat info;
  if (lstat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return "";
  return fmt::format("{}:{}\n", info.st_dev, info.st_ino);
}

std::string AsideOf(const std::string& directory) {
  return directory + ".old";
}

void Replace(const std::string& from, const std::string& to) {
  if (RenameWithFlags(from, to, RENAME_EXCHANGE)) return;
  const std::string aside = AsideOf(to);
  if (fs::exists(fs::symlink_status(aside))) Fail("{}: is in the way; move it elsewhere", aside);
  Rename(to, aside);
  try {
    Rename(from, to);
  } catch (const Error&) {
    Rename(aside, to);
    throw;
  }
}

}  // namespace

bool IsWritersOwn(std::string_view name) {
  return name == kLockName || name == kReplacedName || !TargetOfTemporary(name).empty();
}

void RefuseUnknownFiles(const std::string& directory, const KnownFile& known) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (entry.symlink_status().type() == fs::file_type::regular && IsOurs(name, known)) continue;
    Fail("{}: not made by nibble; move it elsewhere", entry.path().string());
  }
}

void RemoveKnownFiles(const std::string& directory, const KnownFile& known) {
  std::error_code ignored;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    if (IsOurs(entry.path().filename().string(), known)) files.push_back(entry.path());
  }
  for (const fs::path& file : files) Uninterrupted([&] { return unlink(file.c_str()); });
  rmdir(directory.c_str());
}

void PublishDirectory(const std::string& from, const std::string& to, bool replace,
                      const KnownFile& known) try {
  if (!fs::is_directory(fs::symlink_status(from))) Fail("{}: not a directory", from);
  RefuseUnknownFiles(from, known);
  const bool exists = fs::exists(fs::symlink_status(to));
  if (exists) {
    if (!replace) Fail("{}: exists already", to);
    RefuseUnknownFiles(to, known);
    WriteFileAtomic((fs::path(from) / kReplacedName).string(), NumberOf(to));
  }
  CleanAndSync(from);
  if (exists) {
    Replace(from, to);
  } else if (!RenameWithFlags(from, to, RENAME_NOREPLACE)) {
    Rename(from, to);
  }
  SyncPath(ParentOf(to));
  FinishPublishing(from, to, known);
} catch (const fs::filesystem_error& e) {
  Fail("{}: cannot be published as {} ({})", from, to, SystemErrorText(e.code().value()));
}

void FinishPublishing(const std::string& from, const std::string& to, const KnownFile& known) {
  const std::string mark = (fs::path(to) / kReplacedName).string();
  std::error_code ignored;
  if (!fs::is_regular_file(fs::symlink_status(mark, ignored))) return;
  const std::string number = ReadFile(mark, 100);
  for (const std::string& old : {from, AsideOf(to)}) {
    if (number.empty() || NumberOf(old) != number) continue;
    RemoveKnownFiles(old, known);
    if (NumberOf(old) == number) return;  // not gone; the next run tries again
  }
  RemoveFile(mark);
  SyncPath(to);
}

DirectoryLock::DirectoryLock(const std::string& directory) {
  const std::string path = (fs::path(directory) / kLockName).string();
  fd_ = Fd(Uninterrupted(
      [&] { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666); }));
  if (!fd_.valid()) FailErrno(path, "cannot be created");
  if (Uninterrupted([&] { return flock(fd_.get(), LOCK_EX | LOCK_NB); }) != 0) {
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
