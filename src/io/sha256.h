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
// The same for large files that a program asks for again and again: read once, and again only when
// the file is another or was changed since, by its inode, size and times.
std::string Sha256FileOnce(const std::string& path);

}  // namespace nibble
