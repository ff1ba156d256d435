// SPDX-License-Identifier: Apache-2.0
// The text of answers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "http/server.h"

namespace nibble::http {

// Properties of a request that decide its answer's form.
struct AnswerForm {
  bool keep_alive = false;  // the connection goes on behind it
  bool old = false;         // HTTP/1.0
  bool head_only = false;
  std::string id;
};

// Status line and fields with the empty line. body_bytes: none for a stream.
std::string AnswerHead(int status, std::string_view content_type, std::optional<size_t> body_bytes,
                       const AnswerForm& form, const Headers& extra);

// A whole answer of the HTTP layer's own, as JSON; 503 with Retry-After.
std::string ErrorAnswer(int status, std::string_view message, const AnswerForm& form,
                        const ErrorBody& body);

// `body`, or the default where there is none or it throws.
std::string ErrorText(int status, std::string_view message, const ErrorBody& body);

// `data` (not empty) as one chunk of a chunked body.
std::string Chunk(std::string_view data);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace nibble::http
