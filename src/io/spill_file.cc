// SPDX-License-Identifier: Apache-2.0
#include "io/spill_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "base/error.h"
#include "io/atomic_file.h"

namespace nibble {
namespace {

size_t PageBytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

SpillFile::SpillFile(const std::string& directory)
    : directory_(directory), fd_(Uninterrupted([&] {
        return open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
      })) {
  if (!fd_.valid()) FailErrno(directory, "cannot hold a file without a name");
}

SpillFile::~SpillFile() {
  for (const auto& mapping : mappings_) munmap(mapping.data(), mapping.size());
}

AlignedBytes SpillFile::Allocate(size_t bytes) {
  const size_t page = PageBytes(), size = (bytes + page - 1) / page * page;
  if (size < bytes || size == 0) Fail("{}: {} bytes cannot be reserved", directory_, bytes);
  off_t end = 0;
  for (const auto& mapping : mappings_) end += static_cast<off_t>(mapping.size());
  // The disk space is reserved: with a hole, a full disk would end the process when a page is
  // written.
  const int error = Uninterrupted([&] {
    errno = posix_fallocate(fd_.get(), end, static_cast<off_t>(size));
    return errno == 0 ? 0 : -1;
  });
  if (error != 0) {
    FailErrno(directory_, "has too little space for what does not fit into memory");
  }
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), end);
  if (memory == MAP_FAILED) FailErrno(directory_, "cannot be mapped");
  mappings_.emplace_back(static_cast<std::byte*>(memory), size);
  return {static_cast<std::byte*>(memory), FreeBytes{[](void*) {}}};
}

void SpillFile::Rest(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(PageBytes());
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = (begin + page - 1) / page * page,
                  last = (begin + bytes.size()) / page * page;
  // The mapping is shared, so the file keeps what was written.
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace nibble
