// SPDX-License-Identifier: Apache-2.0
#include "http/request_reader.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace nibble::http {

std::optional<std::string> Request::Header(std::string_view lower_case_name) const {
  return FindField(fields, lower_case_name);
}

std::string RequestId(const std::optional<std::string>& asked) {
  const auto may_stand = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  };
  if (asked && !asked->empty() && asked->size() <= 128 && std::ranges::all_of(*asked, may_stand)) {
    return *asked;
  }
  thread_local Rng rng(uint64_t{std::random_device()()} << 32 | std::random_device()());
  return fmt::format("{:016x}{:016x}", rng.Next(), rng.Next());
}

// Returns whether the header is complete, with scanned_ bytes. Looks at every byte once, so that a
// header of any pieces takes linear time and is refused at its first bad byte. The parser behind it
// would unfold lines and knows no limit across pieces.
bool RequestReader::ScanHead(std::string_view data) {
  for (; scanned_ < data.size(); ++scanned_) {
    if (scanned_ >= limits_.header_bytes) {
      throw Refused{431,
                    fmt::format("the header must have at most {} bytes", limits_.header_bytes)};
    }
    const char c = data[scanned_], before = scanned_ > 0 ? data[scanned_ - 1] : '\0';
    if ((before == '\r') != (c == '\n')) throw Refused{400, "lines must end with CR LF"};
    if (c == '\n') {
      const bool empty = scanned_ - line_begin_ == 1;
      line_begin_ = scanned_ + 1;
      if (empty) {
        ++scanned_;
        return true;
      }
      if (++lines_ > limits_.header_fields + 1) {
        throw Refused{431,
                      fmt::format("the header must have at most {} fields", limits_.header_fields)};
      }
    } else if (scanned_ == line_begin_ && (c == ' ' || c == '\t')) {
      throw Refused{400, "a line of the header begins with a space"};
    } else if ((c >= 0 && c < ' ' && c != '\t' && c != '\r') || c == 0x7F) {
      throw Refused{400, "the header has a control character"};
    }
  }
  return false;
}

size_t RequestReader::Feed(std::string_view data) {
  size_t taken = 0;
  if (!head_done()) {
    if (!ScanHead(data)) return 0;
    head_ = ParseHead(data.substr(0, scanned_));
    framing_ = CheckHead(head_, limits_);
    if (framing_->body == BodyKind::kChunked) chunks_.emplace(limits_);
    taken = scanned_;
    data.remove_prefix(taken);
  }
  if (chunks_) return taken + chunks_->Feed(data, &body_);
  if (framing_->body == BodyKind::kNone) return taken;
  const size_t content = std::min<uint64_t>(framing_->length - body_.size(), data.size());
  body_ += data.substr(0, content);
  return taken + content;
}

bool RequestReader::done() const {
  if (!head_done()) return false;
  if (chunks_) return chunks_->done();
  return body_.size() == framing_->length;
}

Request RequestReader::TakeRequest() {
  NIBBLE_CHECK(done());
  Request request;
  request.method = framing_->head_only ? "GET" : head_.method;
  request.path = framing_->path;
  request.query = framing_->query;
  request.body = std::move(body_);
  request.id = RequestId(FindField(head_.fields, "x-request-id"));
  request.fields = std::move(head_.fields);
  return request;
}

}  // namespace nibble::http
