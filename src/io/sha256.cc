// SPDX-License-Identifier: Apache-2.0
#include "io/sha256.h"

#include <fmt/ranges.h>
#include <openssl/evp.h>
#include <sys/stat.h>

#include <array>
#include <ctime>
#include <map>
#include <mutex>

#include "base/error.h"
#include "io/mmap_file.h"

namespace nibble {

std::string Sha256(std::span<const std::byte> bytes) {
  std::array<unsigned char, 32> digest;
  unsigned int size = 0;
  const int ok =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr);
  if (ok != 1) Fail("OpenSSL cannot compute SHA-256 (not built in, or out of memory)");
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

std::string Sha256File(const std::string& path) {
  return Sha256(MappedFile(path).bytes());
}

std::string Sha256FileOnce(const std::string& path) {
  using Version = std::array<int64_t, 7>;
  static std::mutex mutex;
  static std::map<Version, std::string> known;
  struct stat s = {};
  timespec now = {};
  // Times are steps of some milliseconds: only where the last change lies back will the next one
  // show in them.
  if (stat(path.c_str(), &s) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0 ||
      now.tv_sec - s.st_ctim.tv_sec < 2) {
    return Sha256File(path);
  }
  const Version version = {static_cast<int64_t>(s.st_dev),
                           static_cast<int64_t>(s.st_ino),
                           s.st_size,
                           s.st_mtim.tv_sec,
                           s.st_mtim.tv_nsec,
                           s.st_ctim.tv_sec,
                           s.st_ctim.tv_nsec};
  const std::lock_guard lock(mutex);
  auto found = known.find(version);
  if (found == known.end()) found = known.emplace(version, Sha256File(path)).first;
  return found->second;
}

}  // namespace nibble
