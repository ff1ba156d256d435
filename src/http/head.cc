// SPDX-License-Identifier: Apache-2.0
// The grammar of request line and fields, by Beast's parser. Only this: in Beast 1.81, trailers
// join the header, lengths contradict each other unnoticed, chunk extensions have no bound, and a
// last chunk that comes in pieces trips an assertion (framing.cc and chunked_body.cc do these).
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>

#include "http/framing.h"

namespace nibble::http {
namespace {

namespace beast = boost::beast;
using beast::http::error;

class HeadParser final : public beast::http::basic_parser<true> {
 public:
  Head head;

 private:
  using Text = beast::string_view;
  using Code = beast::error_code;

  void on_request_impl(beast::http::verb, Text method, Text target, int version, Code&) override {
    head.method = std::string(method);
    head.target = std::string(target);
    head.version = version;
  }
  void on_field_impl(beast::http::field, Text name, Text value, Code&) override {
    head.fields.emplace_back(LowerCase(std::string_view(name.data(), name.size())), value);
  }
  // A header alone never reaches the functions below.
  void on_response_impl(int, Text, int, Code&) override {}
  void on_header_impl(Code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, Code&) override {}
  size_t on_body_impl(Text body, Code&) override { return body.size(); }
  void on_chunk_header_impl(uint64_t, Text, Code&) override {}
  size_t on_chunk_body_impl(uint64_t, Text body, Code&) override { return body.size(); }
  void on_finish_impl(Code&) override {}
};

}  // namespace

Head ParseHead(std::string_view bytes) {
  HeadParser parser;
  parser.header_limit(static_cast<uint32_t>(bytes.size()));
  parser.body_limit(boost::none);  // CheckHead has its own
  beast::error_code failure;
  size_t taken = parser.put(boost::asio::buffer(bytes.data(), bytes.size()), failure);
  if (failure == error::bad_version) throw Refused{505, "only HTTP/1.0 and HTTP/1.1 are spoken"};
  if (failure || !parser.is_header_done() || taken != bytes.size()) {
    const bool length =
        failure == error::bad_content_length || failure == error::multiple_content_length;
    throw Refused{400, length ? "Content-Length is no length" : "the header is malformed"};
  }
  return std::move(parser.head);
}

}  // namespace nibble::http
