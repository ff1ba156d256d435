// SPDX-License-Identifier: Apache-2.0
// Decodes a body in chunks (RFC 9112, 7.1) that comes in any pieces. Extensions are skipped,
// trailers dropped; both count against Limits::header_bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "http/framing.h"

namespace nibble::http {

class ChunkedBody {
 public:
  explicit ChunkedBody(const Limits& limits) : limits_(limits) {}

  // Takes bytes up to the body's end, appends its content to *body and returns how many it took.
  // Throws Refused.
  size_t Feed(std::string_view data, std::string* body);
  bool done() const { return state_ == State::kDone; }

 private:
  enum class State { kSize, kContent, kContentEnd, kTrailers, kDone };

  std::optional<std::string> TakeLine(std::string_view* data, size_t max_bytes);
  void TakeSize(std::string_view line, size_t body_bytes);
  void TakeTrailer(std::string_view line);
  void CountExtra(size_t bytes);

  Limits limits_;
  State state_ = State::kSize;
  std::string line_;   // as much of it as has come
  uint64_t left_ = 0;  // of the chunk's content
  size_t extra_ = 0;   // bytes of extensions and trailers
  size_t trailer_fields_ = 0;
};

}  // namespace nibble::http
