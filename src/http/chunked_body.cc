// SPDX-License-Identifier: Apache-2.0
#include "http/chunked_body.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"

namespace nibble::http {

// A line without its CR LF, once it is complete.
std::optional<std::string> ChunkedBody::TakeLine(std::string_view* data, size_t max_bytes) {
  const size_t feed = data->find('\n');
  const size_t bytes = feed == data->npos ? data->size() : feed + 1;
  if (bytes > max_bytes + 2 || line_.size() > max_bytes + 2 - bytes) {
    throw Refused{400, "a line of the chunked body is too long"};
  }
  line_ += data->substr(0, bytes);
  data->remove_prefix(bytes);
  if (feed == data->npos) return std::nullopt;
  std::string line = std::exchange(line_, "");
  line.pop_back();
  const auto is_control = [](char c) { return (c >= 0 && c < ' ' && c != '\t') || c == 0x7F; };
  if (!line.ends_with('\r') || std::ranges::count_if(line, is_control) != 1) {
    throw Refused{400, "a line of the chunked body has control characters or no CR LF"};
  }
  line.pop_back();
  return line;
}

void ChunkedBody::CountExtra(size_t bytes) {
  extra_ += bytes;
  if (extra_ > limits_.header_bytes) {
    throw Refused{431, "chunk extensions and trailers are too long"};
  }
}

// 1 to 16 hexadecimal digits, then the end or an extension.
void ChunkedBody::TakeSize(std::string_view line, size_t body_bytes) {
  const size_t digits = std::min(line.find(';'), line.size());
  const char* const end = line.data() + digits;
  const auto result = std::from_chars(line.data(), end, left_, 16);
  if (digits == 0 || digits > 16 || result.ptr != end || result.ec != std::errc()) {
    throw Refused{400, "a chunk's size is no hexadecimal number"};
  }
  CountExtra(line.size() - digits);
  if (left_ > limits_.body_bytes - body_bytes) {
    throw Refused{413, fmt::format("the body must have at most {} bytes", limits_.body_bytes)};
  }
  state_ = left_ > 0 ? State::kContent : State::kTrailers;
}

void ChunkedBody::TakeTrailer(std::string_view line) {
  if (line.empty()) {
    state_ = State::kDone;
    return;
  }
  CountExtra(line.size());
  if (++trailer_fields_ > limits_.header_fields) throw Refused{431, "too many trailers"};
  const size_t name = line.find(':');
  if (name == 0 || name == line.npos || line.find_first_of(" \t") < name) {
    throw Refused{400, "a trailer is no field"};
  }
}

size_t ChunkedBody::Feed(std::string_view data, std::string* body) {
  constexpr size_t kMaxSizeLine = 1024;  // digits and extensions of one chunk
  const size_t all = data.size();
  while (!data.empty() && !done()) {
    if (state_ == State::kContent) {
      const size_t bytes = std::min<uint64_t>(left_, data.size());
      *body += data.substr(0, bytes);
      data.remove_prefix(bytes);
      left_ -= bytes;
      if (left_ == 0) state_ = State::kContentEnd;
      continue;
    }
    const size_t max_bytes = state_ == State::kContentEnd ? 0
                             : state_ == State::kSize     ? kMaxSizeLine
                                                          : limits_.header_bytes;
    const auto line = TakeLine(&data, max_bytes);
    if (!line) break;
    if (state_ == State::kContentEnd) {
      state_ = State::kSize;  // TakeLine has seen to it that the line is empty
    } else if (state_ == State::kSize) {
      TakeSize(*line, body->size());
    } else {
      TakeTrailer(*line);
    }
  }
  return all - data.size();
}

}  // namespace nibble::http
