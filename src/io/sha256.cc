// SPDX-License-Identifier: Apache-2.0
#include "io/sha256.h"

#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <array>

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

}  // namespace nibble
