// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace nibble {

// Bytes that this machine could still give to programs without swapping, and no more than the
// container may use in which this one runs; nullopt if the machine does not say.
std::optional<uint64_t> AvailableMemory();

}  // namespace nibble
