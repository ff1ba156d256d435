// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace nibble {

// Lower-case hexadecimal digest (FIPS 180-4).
std::string Sha256(std::span<const std::byte> bytes);
std::string Sha256File(const std::string& path);

}  // namespace nibble
