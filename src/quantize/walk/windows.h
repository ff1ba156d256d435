// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// `count` windows of `context` tokens at random starts (overlap allowed), one after the other. A
// text shorter than one window is an error naming `where`.
std::vector<int32_t> RandomWindows(const std::vector<int32_t>& ids, int64_t count, int64_t context,
                                   uint64_t seed, const std::string& where);

// At most `wanted` windows of `length` tokens, from all of the text, where no window of
// RandomWindows with the same numbers touches them.
std::vector<std::vector<int32_t>> UnseenWindows(const std::vector<int32_t>& ids, int64_t count,
                                                int64_t context, uint64_t seed, int64_t wanted,
                                                int64_t length);

}  // namespace nibble
