// SPDX-License-Identifier: Apache-2.0
// A byte for the size of pieces, the rest as what one connection sends. Requests and refusals are
// the same whole and in pieces, keep the limits, and cannot add a line to an answer.
#include <vector>

#include "base/utf8.h"
#include "fuzz_input.h"
#include "http/request_reader.h"
#include "http/response.h"

namespace nibble {
namespace {

using namespace http;

const Limits kLimits = {.header_bytes = 512, .header_fields = 8, .body_bytes = 256};

void CheckEcho(const Request& request) {
  const std::string head = AnswerHead(200, "text/plain", 0, {.id = request.id}, request.fields);
  size_t lines = 0;
  for (size_t at = 0; (at = head.find('\n', at)) != head.npos; ++at) {
    NIBBLE_CHECK(at > 0 && head[at - 1] == '\r');
    ++lines;
  }
  NIBBLE_CHECK(lines <= 6 + request.fields.size() && head.ends_with("\r\n\r\n"), "{}", head);
  NIBBLE_CHECK(head.find("\r\n\r\n") == head.size() - 4, "{}", head);
}

void CheckRequest(const Request& request) {
  NIBBLE_CHECK(request.body.size() <= kLimits.body_bytes);
  NIBBLE_CHECK(request.fields.size() <= kLimits.header_fields);
  NIBBLE_CHECK(IsValidUtf8(request.path) && request.path.starts_with('/'), "{}", request.path);
  size_t framing_fields = 0, hosts = 0;
  for (const auto& [name, value] : request.fields) {
    NIBBLE_CHECK(!name.empty() && name == LowerCase(name), "{}", name);
    NIBBLE_CHECK(value.find_first_of(std::string_view("\r\n\0", 3)) == value.npos);
    framing_fields += name == "content-length" || name == "transfer-encoding";
    hosts += name == "host";
  }
  NIBBLE_CHECK(framing_fields <= 1 && hosts <= 1, "{} {}", framing_fields, hosts);
  CheckEcho(request);
}

// The parts of all requests, then the status of the refusal.
std::vector<std::string> Outcome(std::string_view input, size_t piece) {
  std::vector<std::string> outcome;
  std::string buffer;
  RequestReader reader(kLimits);
  try {
    while (!input.empty()) {
      buffer += input.substr(0, piece);
      input.remove_prefix(std::min(piece, input.size()));
      for (;;) {
        const size_t taken = reader.Feed(buffer);
        NIBBLE_CHECK(taken <= buffer.size());
        buffer.erase(0, taken);
        if (!reader.done()) break;
        const Request request = reader.TakeRequest();
        CheckRequest(request);
        outcome.insert(outcome.end(), {request.method, request.path, request.query, request.body});
        reader = RequestReader(kLimits);
        if (buffer.empty()) break;
      }
      NIBBLE_CHECK(buffer.size() <= kLimits.header_bytes + piece);
    }
  } catch (const Refused& refused) {
    NIBBLE_CHECK(refused.status >= 400 && refused.status < 600);
    outcome.push_back(fmt::to_string(refused.status));
  }
  return outcome;
}

void Use(std::string_view input) {
  if (input.empty()) return;
  const size_t piece = 1 + static_cast<uint8_t>(input[0]);
  input.remove_prefix(1);
  NIBBLE_CHECK(Outcome(input, piece) == Outcome(input, input.size()), "{} bytes at once", piece);
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
