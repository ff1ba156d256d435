// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace nibble {

// Whole content of a regular file; an error if it is missing, unreadable or above max_bytes.
std::string ReadFile(const std::string& path, uint64_t max_bytes);

}  // namespace nibble
