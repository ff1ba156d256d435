// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

// Lower-case hexadecimal digest (FIPS 180-4).
std::string Sha256(std::span<const std::byte> bytes);
inline std::string Sha256Text(std::string_view text) {
  return Sha256(std::as_bytes(std::span(text)));
}
std::string Sha256File(const std::string& path);
// The digest of a large file that a program asks for again and again: the file is read once, and
// again only when its inode, size or times say that it is another or was changed.
std::string Sha256FileOnce(const std::string& path);

}  // namespace nibble
