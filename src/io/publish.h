// SPDX-License-Identifier: Apache-2.0
// Directories that appear whole or not at all, whatever moment the machine dies at. They are flat,
// and only files that their owner knows are ever published or removed: anything else in them
// belongs to somebody.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "io/fd.h"

namespace nibble {

// Returns whether a file of this name may have been made by the owner of a directory.
using KnownFile = std::function<bool(std::string_view name)>;

// Returns whether a file of this name serves only the writer of a directory and is never published:
// the lock, temporaries, the note that PublishDirectory makes.
bool IsWritersOwn(std::string_view name);

// Throws, naming the first entry of `directory`, if one is no plain file or has a name that is
// neither known nor the writer's own.
void RefuseUnknownFiles(const std::string& directory, const KnownFile& known);

// Removes the known files of a directory, then the directory if it is empty. It never fails: what
// cannot be removed stays.
void RemoveKnownFiles(const std::string& directory, const KnownFile& known);

// Makes the finished directory `from` appear, fsynced, as `to` (same file system), without what
// IsWritersOwn names. An existing `to` is an error unless `replace`: then the names are exchanged
// in one step and the old content's known files removed. On file systems that cannot exchange,
// `to` is absent for a moment, never partial, the old content lying at TO.old.
void PublishDirectory(const std::string& from, const std::string& to, bool replace,
                      const KnownFile& known);

// Removes the old content that a PublishDirectory killed after its exchange left at `from` or
// TO.old. `to` holds the number of the directory that it replaced, so no other one is touched.
void FinishPublishing(const std::string& from, const std::string& to, const KnownFile& known);

// Exclusive right to write in a directory, given up on destruction or death of the process.
// Throws if another holder (also in this process) exists. Uses flock on DIR/lock, which remains.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory);

 private:
  Fd fd_;
};

}  // namespace nibble
