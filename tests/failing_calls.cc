// SPDX-License-Identifier: Apache-2.0
// Loaded before the program (LD_PRELOAD), to make system calls fail as on a machine without free
// threads or disk space: NIBBLE_TEST_THREADS=n lets n threads start, NIBBLE_TEST_BYTES=n lets n
// bytes be written to files.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

int64_t Limit(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? INT64_MAX : std::atoll(value);
}

std::atomic<int64_t> threads_left = Limit("NIBBLE_TEST_THREADS");
std::atomic<int64_t> bytes_left = Limit("NIBBLE_TEST_BYTES");

// Returns how many of `count` bytes the disk still takes; 0 with errno ENOSPC.
size_t Granted(int fd, size_t count) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || fd <= STDERR_FILENO) return count;
  const auto granted = std::min(static_cast<int64_t>(count), std::max<int64_t>(0, bytes_left));
  bytes_left -= granted;
  if (granted == 0) errno = ENOSPC;
  return static_cast<size_t>(granted);
}

template <typename Function>
Function Next(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  if (threads_left-- <= 0) return EAGAIN;
  return Next(&pthread_create, "pthread_create")(thread, attributes, start, argument);
}

ssize_t write(int fd, const void* bytes, size_t count) {
  const size_t granted = Granted(fd, count);
  return count != 0 && granted == 0 ? -1 : Next(&write, "write")(fd, bytes, granted);
}

ssize_t sendfile(int out, int in, off_t* offset, size_t count) {
  const size_t granted = Granted(out, count);
  return count != 0 && granted == 0 ? -1 : Next(&sendfile, "sendfile")(out, in, offset, granted);
}

}  // extern "C"
