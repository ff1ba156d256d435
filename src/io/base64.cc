// SPDX-License-Identifier: Apache-2.0
#include "io/base64.h"

#include <openssl/evp.h>

namespace nibble {

std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const auto* const digits = reinterpret_cast<const unsigned char*>(text.data());
  std::string bytes(text.size() / 4 * 3, '\0');
  const int written = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()), digits,
                                      static_cast<int>(text.size()));
  if (written != static_cast<int>(bytes.size())) return std::nullopt;
  bytes.resize(bytes.size() - (text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0));
  // EVP_DecodeBlock also accepts white space, odd padding and bits that are left over; here each
  // value has one text.
  if (EncodeBase64(bytes) != text) return std::nullopt;
  return bytes;
}

std::string EncodeBase64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // and the zero byte that ends it in C
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                  reinterpret_cast<const unsigned char*>(bytes.data()),
                  static_cast<int>(bytes.size()));
  text.pop_back();
  return text;
}

}  // namespace nibble
