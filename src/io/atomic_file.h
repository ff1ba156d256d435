// SPDX-License-Identifier: Apache-2.0
// Files and directories that exist complete or not at all, whatever moment the machine dies at:
// write beside the target, fsync, rename, fsync the directory. Without the first fsync the rename
// may reach the disk before the data; without the last one it may not reach the disk at all.
// Errors (unwritable target, disk full, ...) are one line naming the file; the target is then
// unchanged and the temporary removed. A killed process leaves NAME.*.tmp, never a torn NAME.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "io/fd.h"

namespace nibble {

// Not for use by several threads at once; two writers of one path do not mix, the later wins.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();  // without Commit() the target stays as it was

  void Write(std::span<const std::byte> bytes);
  void Write(std::string_view text);
  void Commit();
  const std::string& path() const { return path_; }

 private:
  std::string path_, temporary_;
  Fd fd_;
};

void WriteFileAtomic(const std::string& path, std::string_view text);

// Makes the finished directory `from` appear as `to` (same file system). First removes what only
// its writer needed, the lock file and the *.tmp of killed writers, and fsyncs the rest. An
// existing `to` is an error unless `replace`: then the two names are exchanged in one step and the
// old content removed, so that `to` is the old or the new directory at every moment. A process
// killed during that removal leaves the old content, in part, at `from`. On file systems that
// cannot exchange, `to` is absent (never partial) between two renames, the old content lying at
// TO.old.
void PublishDirectory(const std::string& from, const std::string& to, bool replace);

// Exclusive right to write in a directory, given up on destruction or death of the process.
// Throws if another holder (also in this process) exists. Uses flock on DIR/lock, which remains.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory);

 private:
  Fd fd_;
};

}  // namespace nibble
