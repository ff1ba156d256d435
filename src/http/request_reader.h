// SPDX-License-Identifier: Apache-2.0
// Reads one request from bytes that come in any pieces. Knows no sockets and no time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "http/chunked_body.h"
#include "http/framing.h"

namespace nibble::http {

class RequestReader {
 public:
  explicit RequestReader(const Limits& limits) : limits_(limits) {}

  // `data` begins where the last call stopped taking. Returns the bytes taken, none beyond the
  // request's end; while the header is incomplete it takes none and wants them again with more.
  // Throws Refused, after which nothing more of these bytes may be read.
  size_t Feed(std::string_view data);

  bool head_done() const { return framing_.has_value(); }
  bool done() const;
  const Head& head() const { return head_; }  // after head_done()
  const Framing& framing() const { return *framing_; }
  const std::string& body() const { return body_; }  // what has come of it
  // Returns the request without its peer; to be called once, after done().
  Request TakeRequest();

 private:
  bool ScanHead(std::string_view data);

  Limits limits_;
  size_t scanned_ = 0;     // bytes of the header that were looked at
  size_t line_begin_ = 0;  // of the line that scanned_ is in
  size_t lines_ = 0;
  Head head_;
  std::optional<Framing> framing_;
  std::optional<ChunkedBody> chunks_;
  std::string body_;
};

// The id that was asked for if it may be one, else a random one.
std::string RequestId(const std::optional<std::string>& asked);

}  // namespace nibble::http
