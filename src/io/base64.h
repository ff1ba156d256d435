// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// The bytes of a text of at most 1 GiB in base64 (RFC 4648, with padding); nullopt if the text is
// not base64.
std::optional<std::string> DecodeBase64(std::string_view text);
// The base64 text of `bytes`, to be written into a document.
std::string EncodeBase64(std::string_view bytes);

}  // namespace nibble
