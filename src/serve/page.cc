// SPDX-License-Identifier: Apache-2.0
// GET /: the chat page, one file within the program.
#include <openssl/sha.h>

#include "base/embedded.h"
#include "io/base64.h"
#include "serve/call.h"

NIBBLE_EMBED(ChatPage, NIBBLE_CHAT_PAGE)

namespace nibble::serve {
namespace {

// 'sha256-..' of the text between the tags, in the form of Content-Security-Policy.
std::string HashOf(std::string_view page, std::string_view open, std::string_view close) {
  const size_t begin = page.find(open) + open.size();
  const std::string_view inside = page.substr(begin, page.find(close, begin) - begin);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(inside.data()), inside.size(), digest);
  return "'sha256-" + EncodeBase64({reinterpret_cast<const char*>(digest), sizeof(digest)}) + "'";
}

}  // namespace

void Page(Call& call) {
  const std::string_view page = ChatPage();
  static const std::string policy = fmt::format(
      "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      HashOf(page, "<script>", "</script>"), HashOf(page, "<style>", "</style>"));
  call.ReplyText(200, "text/html; charset=utf-8", std::string(page),
                 {{"Content-Security-Policy", policy},
                  {"X-Content-Type-Options", "nosniff"},
                  {"Referrer-Policy", "no-referrer"},
                  {"Cache-Control", "no-cache"}});
}

}  // namespace nibble::serve
