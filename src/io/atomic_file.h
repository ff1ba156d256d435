// SPDX-License-Identifier: Apache-2.0
// Files that exist complete or not at all, whenever the machine dies: write beside the target,
// fsync, rename, fsync the directory. Without the first fsync the rename may reach the disk before
// the data; without the last one it may not reach the disk at all.
//
// An error is one line that names the file; the target is then unchanged and the temporary removed.
// A killed process leaves NAME.*.tmp.
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

// The file that NAME.PID-N.tmp was to become; empty for other names.
std::string_view TargetOfTemporary(std::string_view name);

// The steps that files and directories are published with. Errors name the path.
[[noreturn]] void FailErrno(const std::string& path, std::string_view what);  // and errno
std::string ParentOf(const std::string& path);                                // "." for a bare name
void Rename(const std::string& from, const std::string& to);
void RemoveFile(const std::string& path);         // or does nothing, where there is none
void CreateDirectories(const std::string& path);  // those that are missing
void SyncPath(const std::string& path);

}  // namespace nibble
