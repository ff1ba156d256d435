// SPDX-License-Identifier: Apache-2.0
// The alphabet of byte-level BPE (GPT-2): each byte is written as one printable character. Visible
// Latin-1 characters stand for themselves, the other 68 bytes are U+0100, U+0101, ... in order.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

void AppendByteChars(std::string_view bytes, std::string* chars);

// The bytes that `chars` (valid UTF-8) stands for. A text with any character outside the alphabet
// stands for itself: added tokens are written that way.
std::string BytesFromByteChars(std::string_view chars);

}  // namespace nibble
