// SPDX-License-Identifier: Apache-2.0
// Decides which requests are taken, and how their bodies are framed. Two readers of the same bytes
// that disagree on where a request ends are how requests are smuggled, so whatever RFC 9112 leaves
// to choose is refused: several lengths, Transfer-Encoding other than one `chunked`, folded lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "http/server.h"

namespace nibble::http {

// Thrown for a request that is answered with `status`, after which its connection closes.
struct Refused {
  int status;
  std::string message;
};

// A request's header as it stands there, apart from whitespace around values.
struct Head {
  std::string method, target;
  int version = 11;  // 10 or 11
  Headers fields;    // names in lower case
};

enum class BodyKind { kNone, kLength, kChunked };

struct Framing {
  BodyKind body = BodyKind::kNone;
  uint64_t length = 0;  // of kLength; at most Limits::body_bytes
  bool keep_alive = false, expects_continue = false, head_only = false;
  std::string path, query;
};

// The value of the first field of this name.
std::optional<std::string> FindField(const Headers& fields, std::string_view lower_case_name);

// Parses the header of one request, from its first byte to its empty line, which RequestReader has
// looked at line by line. Throws Refused.
Head ParseHead(std::string_view bytes);

// Throws Refused unless the request can be read and answered.
Framing CheckHead(const Head& head, const Limits& limits);

std::string LowerCase(std::string_view text);

}  // namespace nibble::http
