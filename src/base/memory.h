// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace nibble {

// Bytes that this machine could still give to programs without swapping; nullopt if it does not
// say.
std::optional<uint64_t> AvailableMemory();

}  // namespace nibble
