// SPDX-License-Identifier: Apache-2.0
#include "io/mmap_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/fd.h"

namespace nibble {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a FIFO must reach the check below instead of waiting for a writer.
  const Fd fd(Uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    Fail("{}: cannot be opened ({})", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) Fail("{}: not a regular file", path);
  if (info.st_size == 0) return;  // mmap refuses empty ranges
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) Fail("{}: cannot be mapped ({})", path, std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::DropPages() const {
  // A hint; nothing is lost, since nobody can have written to these pages.
  if (!bytes_.empty()) madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace nibble
